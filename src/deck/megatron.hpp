// Megatron-LM options in terms of our keys: for people who come with a Megatron job script.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace orthant {

struct MegatronOption {
  std::string option;  ///< without leading dashes
  std::string value;   ///< of the option; empty = any value, or a switch
  std::string key;     ///< ours; empty = there is none
  std::string ours;    ///< value of our key as TOML; empty = the option's own value
  std::string note;    ///< what differs, or what to do where there is no key
};

/// All rows, grouped by subject; several rows of one option name its values.
const std::vector<MegatronOption>& megatron_options();

/// The answer to a Megatron option typed where a key was meant, with or without leading dashes, with `-` or `_`;
/// `value` is empty if none was typed. Nothing if it is not such an option.
std::optional<std::string> megatron_answer(const std::string& option, const std::string& value);

/// The whole table as text for `orthant help megatron`.
std::string megatron_table();

}  // namespace orthant
