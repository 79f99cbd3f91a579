// Deck sections model.moe and model.mla as part of a ModelConfig. What model_config.cpp hands over for the families
// mixtral and deepseek, and the refusals of these keys for the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "orthant/deck.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

/// A size the deck must have; 0 and a problem if it has not.
int64_t size_of(const Deck& deck, const Key<int64_t>& key, std::vector<std::string>& problems);
/// A key given beside model.load must have the value of its config.json.
void must_agree(const Deck& deck, std::size_t key, const KeyValue& file, std::vector<std::string>& problems);

/// Whether the family has mixture layers.
bool has_mixtures(const std::string& family);

/// Fills moe, mla and ffn of a mixtral or deepseek whose family and layers are set.
void mixture_of_deck(const Deck& deck, ModelConfig& m, std::vector<std::string>& problems);
/// Sizes and switches of the router must agree with the file; the coefficients of losses, the rate of the bias and
/// the capacity are the deck's (aux_loss only where it is given).
void merge_mixture(const Deck& deck, ModelConfig& m, std::vector<std::string>& problems);
/// Relations among the settings; keys of model.moe and model.mla that the family has not.
void check_mixture(const Deck& deck, const ModelConfig& m, std::vector<std::string>& problems);
void set_mixture_keys(Deck& deck, const ModelConfig& m);

}  // namespace orthant
