// A Hugging Face config.json as a ModelConfig, and back.
#pragma once

#include <string>
#include <vector>

#include "orthant/model_config.hpp"

namespace orthant {

/// Reads `folder`/config.json: model_type gpt2, llama, qwen3, mixtral, deepseek_v3, or mistral without a sliding window
/// (a llama then); rotary settings as `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (4).
///
/// DataError: the file is missing, not JSON, or a value is missing or impossible. UsageError, naming key and value: a
/// family, rotary type, activation or switch that this build lacks. Keys that are not understood, and settings of
/// dropout (the deck's model.dropout decides), are appended to `ignored_keys` as "key = value", for the user to see;
/// only keys known to say nothing about the mathematics are passed over in silence.
ModelConfig read_hf_config(const std::string& folder, std::vector<std::string>* ignored_keys);

/// The same for text already read; `where` (a file name) opens every message.
ModelConfig parse_hf_config(const std::string& text, const std::string& where,
                            std::vector<std::string>* ignored_keys);

/// A config.json in the style of transformers 5 that read_hf_config turns into the same ModelConfig (of the training
/// switches init_std and moe.aux_loss are part of it, dropout, the z-losses, bias_rate and capacity_factor are not).
/// `dtype`: F32, BF16, F16, F64. `original`: the config.json the model came with, or ""; if it says the same it is
/// returned as it is, else its other keys (token ids and the like) are kept. UsageError if a setting has no place in
/// the family's config.json.
std::string write_hf_config(const ModelConfig& config, const std::string& dtype, const std::string& original = "");

}  // namespace orthant
