// One value of a deck: from TOML to the declared type, with its range check.
#pragma once

#include <filesystem>
#include <string>

#include "deck/toml_text.hpp"
#include "orthant/deck.hpp"

namespace orthant {

struct Converted {
  bool ok = false;  ///< `value` holds something of the right type (it may still be out of range)
  KeyValue value;
  std::string problem;  ///< empty if all is well; starts with the key's name and the value
};

/// Converts and checks; relative paths are taken from `folder`.
Converted convert(const KeyInfo& info, const TomlValue& given, const std::filesystem::path& folder);

/// The right-hand side of an override as a TOML value: TOML where it is TOML and of a fitting kind, else plain
/// text; lists may go without brackets and quotes (`a,b`).
TomlValue override_value(const KeyInfo& info, const std::string& text);

}  // namespace orthant
