// Llama's file names; Qwen3 adds the norms of q and k.
#include "model/family.hpp"
#include "orthant/error.hpp"

namespace orthant {

std::optional<FileTensor> llama_outer_file(const ModelConfig& c, const std::string& leaf) {
  if (leaf == "embedding.tokens.weight") return FileTensor{"model.embed_tokens.weight", c.vocab, 0, false};
  if (leaf == "final_norm.weight") return FileTensor{"model.norm.weight", c.hidden, 0, false};
  if (leaf == "head.weight") return FileTensor{"lm_head.weight", c.vocab, 0, false};
  return std::nullopt;
}

namespace {

FileTensor llama_file(const ModelConfig& c, int64_t layer, const std::string& leaf) {
  if (const auto outer = layer < 0 ? llama_outer_file(c, leaf) : std::nullopt) return *outer;
  const std::string at = "model.layers." + std::to_string(layer) + ".";
  const std::string part = leaf.substr(0, leaf.rfind('.')), kind = leaf.substr(leaf.rfind('.'));
  struct Row {
    const char* ours;
    const char* theirs;
    int64_t rows;
  };
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const Row rows[] = {{"norm1", "input_layernorm", c.hidden},       {"norm2", "post_attention_layernorm", c.hidden},
                      {"attention.q", "self_attn.q_proj", q},        {"attention.k", "self_attn.k_proj", kv},
                      {"attention.v", "self_attn.v_proj", kv},       {"attention.out", "self_attn.o_proj", c.hidden},
                      {"attention.q_norm", "self_attn.q_norm", c.head_dim}, {"attention.k_norm", "self_attn.k_norm", c.head_dim},
                      {"mlp.gate", "mlp.gate_proj", c.ffn},          {"mlp.up", "mlp.up_proj", c.ffn},
                      {"mlp.down", "mlp.down_proj", c.hidden}};
  for (const Row& r : rows)
    if (part == r.ours) return {at + r.theirs + kind, r.rows, 0, false};
  throw LogicError("llama and qwen3 have no file name for " + leaf);
}

}  // namespace

Family llama_family() { return {"llama", llama_file}; }
Family qwen3_family() { return {"qwen3", llama_file}; }

}  // namespace orthant
