// What the files of src/deck/ share about declared keys.
#pragma once

#include <optional>
#include <string>

#include "orthant/deck.hpp"

namespace orthant {

/// Does nothing, but lives in the file that includes all sections.
void keep_all_keys();

/// Index of a key by its full name.
std::optional<std::size_t> find_key(const std::string& name);
/// A section of that name has keys, or its sub-sections have.
bool is_section(const std::string& name);
/// A number as TOML text that reads back to the same bits.
std::string number_text(double value);
/// Text in TOML quotes.
std::string quoted(const std::string& text);

}  // namespace orthant
