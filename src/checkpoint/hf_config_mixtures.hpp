// The config.json of mixtures of experts: model_type mixtral and deepseek_v3.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/hf_config_reader.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

/// Fill `c` (family, vocab and init_std are set before) from a config.json. moe.aux_loss becomes router_aux_loss_coef
/// x top_k / mixture layers where output_router_logits is true: the reference adds the picks of a token's top_k
/// choices and takes the mean over layers, ours takes the mean of the picks and adds the layers. Errors as in
/// ConfigReader.
void read_mixtral(ConfigReader& in, ModelConfig& c, std::vector<std::string>* ignored);
void read_deepseek(ConfigReader& in, ModelConfig& c, std::vector<std::string>* ignored);

/// The family's keys for `c`, but for those that all families share. UsageError, naming the deck's key, if a setting
/// has no place in the family's config.json.
nlohmann::json mixtral_keys(const ModelConfig& c);
nlohmann::json deepseek_keys(const ModelConfig& c);

/// Equality of everything under moe and mla that a config.json holds.
bool same_mixture(const ModelConfig& a, const ModelConfig& b);

}  // namespace orthant
