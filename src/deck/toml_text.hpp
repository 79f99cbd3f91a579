// TOML text as plain values, so that one file alone needs the TOML library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace orthant {

struct TomlValue {
  enum Kind { boolean, integer, number, text, list, table, other } kind = other;  ///< other: dates and times
  bool as_boolean = false;
  int64_t as_integer = 0;
  double as_number = 0;
  std::string as_text;
  std::vector<TomlValue> as_list;
  std::vector<std::pair<std::string, TomlValue>> as_table;
  int line = 0;
};

/// How a value would be typed, for messages.
std::string describe(const TomlValue& value);

/// Parses `text` into `root` (a table). Returns the problem, "line:column: …", if the text is not TOML.
std::optional<std::string> parse_toml(const std::string& text, TomlValue& root);

}  // namespace orthant
