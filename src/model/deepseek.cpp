// DeepSeek-V3's file names: latent attention, experts with a shared one beside them, dense first blocks.
#include "model/family.hpp"
#include "orthant/error.hpp"

namespace orthant {

Family deepseek_family() {
  auto file = [](const ModelConfig& c, int64_t layer, const std::string& leaf) -> FileTensor {
    if (const auto outer = layer < 0 ? llama_outer_file(c, leaf) : std::nullopt) return *outer;
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const int64_t q = c.heads * c.mla.qk_dim(), shared = c.moe.shared_experts * c.moe.ffn;
    struct Row {
      const char* ours;
      const char* theirs;
      int64_t rows;
    };
    const Row rows[] = {
        {"norm1.weight", "input_layernorm.weight", c.hidden},
        {"norm2.weight", "post_attention_layernorm.weight", c.hidden},
        {"attention.q.weight", "self_attn.q_proj.weight", q},
        {"attention.q_a.weight", "self_attn.q_a_proj.weight", c.mla.q_lora_rank},
        {"attention.q_a_norm.weight", "self_attn.q_a_layernorm.weight", c.mla.q_lora_rank},
        {"attention.q_b.weight", "self_attn.q_b_proj.weight", q},
        {"attention.kv_a.weight", "self_attn.kv_a_proj_with_mqa.weight", c.mla.kv_lora_rank + c.mla.rope_dim},
        {"attention.kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", c.mla.kv_lora_rank},
        {"attention.kv_b.weight", "self_attn.kv_b_proj.weight", c.heads * (c.mla.nope_dim + c.mla.v_dim)},
        {"attention.out.weight", "self_attn.o_proj.weight", c.hidden},
        {"mlp.gate.weight", "mlp.gate_proj.weight", c.ffn},
        {"mlp.up.weight", "mlp.up_proj.weight", c.ffn},
        {"mlp.down.weight", "mlp.down_proj.weight", c.hidden},
        {"moe.router.weight", "mlp.gate.weight", c.moe.experts},
        {"moe.router.bias", "mlp.gate.e_score_correction_bias", c.moe.experts},
        {"moe.shared.gate.weight", "mlp.shared_experts.gate_proj.weight", shared},
        {"moe.shared.up.weight", "mlp.shared_experts.up_proj.weight", shared},
        {"moe.shared.down.weight", "mlp.shared_experts.down_proj.weight", c.hidden}};
    for (const Row& r : rows)
      if (leaf == r.ours) return {at + r.theirs, r.rows, 0, false};
    if (const auto expert = expert_leaf(leaf)) {
      const std::string start = at + "mlp.experts." + expert->number;
      if (expert->part == "gate.weight") return {start + ".gate_proj.weight", c.moe.ffn, 0, false};
      if (expert->part == "up.weight") return {start + ".up_proj.weight", c.moe.ffn, 0, false};
      if (expert->part == "down.weight") return {start + ".down_proj.weight", c.hidden, 0, false};
    }
    throw LogicError("deepseek has no file name for " + leaf);
  };
  return {"deepseek", file};
}

}  // namespace orthant
