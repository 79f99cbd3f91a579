// Inverse frequencies of the rotary position embedding, as the Hugging Face library defines them, in double.
#pragma once

#include <vector>

#include "orthant/model_config.hpp"

namespace orthant {

/// Position p turns pair i, which is (i, i + head_dim / 2) or, interleaved, (2i, 2i + 1), by the angle p * inverse_frequencies[i]; cos and sin are both
/// multiplied by attention_factor.
struct RopeTable {
  std::vector<double> inverse_frequencies;  ///< head_dim / 2 of them, radians a position
  double attention_factor = 1;
};

/// Types default, linear, llama3 and yarn of model.rope; others, and settings without which the type makes no sense,
/// are a UsageError naming the key.
RopeTable rope_frequencies(const ModelConfig& config);

/// Softmax scale of latent attention: (nope + rope)^-0.5, times (0.1 mscale_all_dim ln(factor) + 1)^2 where yarn sets
/// mscale_all_dim (both sides of the product of queries and keys carry it).
double latent_attention_scale(const ModelConfig& config);

}  // namespace orthant
