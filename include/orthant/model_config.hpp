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

/// Mixture layers (deck section model.moe); experts = 0: the model has none.
struct MoeConfig {
  int64_t experts = 0, top_k = 0;
  int64_t ffn = 0;                 ///< inner width of one expert
  int64_t shared_experts = 0;      ///< their widths add up: one feed-forward layer of shared_experts * ffn
  int64_t first_dense_layers = 0;
  bool sigmoid = false;            ///< scores are sigmoids, else a softmax over all experts
  int64_t groups = 1, top_groups = 1;
  bool norm_topk = true;
  double scale = 1;
  double aux_loss = 0, z_loss = 0; ///< coefficients
  double bias_rate = 0;
  double capacity_factor = 0;      ///< 0: no token is dropped
};

/// Latent attention (deck section model.mla); kv_lora_rank = 0: plain attention.
struct MlaConfig {
  int64_t q_lora_rank = 0;  ///< 0: a plain query projection
  int64_t kv_lora_rank = 0, nope_dim = 0, rope_dim = 0, v_dim = 0;
  bool rope_interleave = true;  ///< rotary pairs (2i, 2i + 1), else (i, i + rope_dim / 2)
  int64_t qk_dim() const { return nope_dim + rope_dim; }
};

/// One transformer. All counts are global (before any cut).
struct ModelConfig {
  std::string family;  ///< gpt2, llama, qwen3, mixtral, deepseek
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
  double z_loss = 0;  ///< coefficient of the mean squared logsumexp of the logits
  MoeConfig moe;
  MlaConfig mla;      ///< deepseek; head_dim is then the rotary width, mla.rope_dim

  /// Whether block `layer` (from 0) has a mixture layer in place of the feed-forward layer.
  bool mixture(int64_t layer) const { return moe.experts > 0 && layer >= moe.first_dense_layers; }
  int64_t mixture_layers() const { return moe.experts > 0 && layers > moe.first_dense_layers ? layers - moe.first_dense_layers : 0; }
  /// Whether routers have a bias that takes part in the choice alone.
  bool selection_bias() const { return family == "deepseek"; }
};

}  // namespace orthant
