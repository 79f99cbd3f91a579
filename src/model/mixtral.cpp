// Mixtral's file names: of an expert w1 is the gate, w3 the way up, w2 the way down.
#include "model/family.hpp"
#include "orthant/error.hpp"

namespace orthant {

Family mixtral_family() {
  auto file = [](const ModelConfig& c, int64_t layer, const std::string& leaf) -> FileTensor {
    if (const auto outer = layer < 0 ? llama_outer_file(c, leaf) : std::nullopt) return *outer;
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    if (leaf == "norm1.weight") return {at + "input_layernorm.weight", c.hidden, 0, false};
    if (leaf == "norm2.weight") return {at + "post_attention_layernorm.weight", c.hidden, 0, false};
    if (leaf == "attention.q.weight") return {at + "self_attn.q_proj.weight", q, 0, false};
    if (leaf == "attention.k.weight") return {at + "self_attn.k_proj.weight", kv, 0, false};
    if (leaf == "attention.v.weight") return {at + "self_attn.v_proj.weight", kv, 0, false};
    if (leaf == "attention.out.weight") return {at + "self_attn.o_proj.weight", c.hidden, 0, false};
    if (leaf == "moe.router.weight") return {at + "block_sparse_moe.gate.weight", c.moe.experts, 0, false};
    if (const auto expert = expert_leaf(leaf)) {
      const std::string start = at + "block_sparse_moe.experts." + expert->number;
      if (expert->part == "gate.weight") return {start + ".w1.weight", c.moe.ffn, 0, false};
      if (expert->part == "up.weight") return {start + ".w3.weight", c.moe.ffn, 0, false};
      if (expert->part == "down.weight") return {start + ".w2.weight", c.hidden, 0, false};
    }
    throw LogicError("mixtral has no file name for " + leaf);
  };
  return {"mixtral", file};
}

}  // namespace orthant
