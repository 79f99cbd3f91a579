// The sizes and switches of a model, as a deck or a Hugging Face config.json gives them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

/// How rotary frequencies are stretched for long contexts (deck section model.rope).
struct RopeScaling {
  std::string type = "default";  ///< default, linear, llama3, yarn
  double factor = 1;
  double low_freq_factor = 1;    ///< llama3
  double high_freq_factor = 4;   ///< llama3
  int64_t original_context = 0;  ///< llama3, yarn: positions the model was trained on
  double beta_fast = 32;         ///< yarn
  double beta_slow = 1;          ///< yarn
  double mscale = 0;             ///< yarn; 0 = not set
  double mscale_all_dim = 0;     ///< yarn; 0 = not set
  double attention_factor = 0;   ///< yarn; 0 = derived from factor
};

/// One dense transformer. All counts are global (before any cut).
struct ModelConfig {
  std::string family;  ///< gpt2, llama, qwen3
  int64_t layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t vocab = 0;
  int64_t context = 0;  ///< positions: rows of the learned table (gpt2), else the longest sequence meant
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope;
  bool tie_embeddings = false;
  bool bias = false;      ///< biases on every linear and norm (gpt2; a llama with attention_bias and mlp_bias)
  bool qkv_bias = false;  ///< biases on q, k, v only
  double dropout = 0;
  double init_std = 0.02;
  double z_loss = 0;
};

}  // namespace orthant
