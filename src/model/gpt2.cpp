// GPT-2's file names. Its Conv1D weights are stored [in, out], and c_attn holds q | k | v.
#include "model/family.hpp"
#include "orthant/error.hpp"

namespace orthant {

Family gpt2_family() {
  auto file = [](const ModelConfig& c, int64_t layer, const std::string& leaf) -> FileTensor {
    if (layer < 0) {
      if (leaf == "embedding.tokens.weight") return {"transformer.wte.weight", c.vocab, 0, false};
      if (leaf == "embedding.positions.weight") return {"transformer.wpe.weight", c.context, 0, false};
      if (leaf == "final_norm.weight") return {"transformer.ln_f.weight", c.hidden, 0, false};
      if (leaf == "final_norm.bias") return {"transformer.ln_f.bias", c.hidden, 0, false};
      if (leaf == "head.weight") return {"lm_head.weight", c.vocab, 0, false};
    }
    const std::string at = "transformer.h." + std::to_string(layer) + ".";
    const int64_t width = c.heads * c.head_dim;
    const std::string part = leaf.substr(0, leaf.rfind('.')), kind = leaf.substr(leaf.rfind('.') + 1);
    const bool matrix = kind == "weight";
    if (part == "norm1") return {at + "ln_1." + kind, c.hidden, 0, false};
    if (part == "norm2") return {at + "ln_2." + kind, c.hidden, 0, false};
    for (int i = 0; i < 3; ++i)
      if (part == std::string("attention.") + "qkv"[i]) return {at + "attn.c_attn." + kind, 3 * width, i * width, matrix};
    if (part == "attention.out") return {at + "attn.c_proj." + kind, c.hidden, 0, matrix};
    if (part == "mlp.up") return {at + "mlp.c_fc." + kind, c.ffn, 0, matrix};
    if (part == "mlp.down") return {at + "mlp.c_proj." + kind, c.hidden, 0, matrix};
    throw LogicError("gpt2 has no file name for " + leaf);
  };
  return {"gpt2", file};
}

}  // namespace orthant
