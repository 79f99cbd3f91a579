// The list of model families, and the parameters of a model.
#include <algorithm>

#include "layers/block.hpp"
#include "layers/embedding.hpp"
#include "layers/head.hpp"
#include "model/family.hpp"
#include "orthant/model.hpp"

namespace orthant {

const Family& family(const std::string& name) {
  static const std::vector<Family> all = {gpt2_family(), llama_family(), qwen3_family(), mixtral_family(), deepseek_family()};
  for (const Family& f : all)
    if (f.name == name) return f;
  throw UsageError("model.family = \"" + name + "\": this build has gpt2, llama, qwen3, mixtral and deepseek", true);
}

std::vector<Param> model_params(const ModelConfig& c) {
  const Family& f = family(c.family);
  std::vector<Param> out;
  auto append = [&](std::vector<Param> more, int64_t layer, const std::string& prefix) {
    for (Param& p : more) {
      p.file = f.file(c, layer, layer < 0 ? p.name : p.name.substr(prefix.size() + 1));
      out.push_back(std::move(p));
    }
  };
  append(Embedding::params(c), -1, "");
  for (int64_t l = 0; l < c.layers; ++l) {
    std::string prefix = "layers." + std::to_string(l);
    append(Block::params(prefix, c, l), l, prefix);
  }
  append(Head::params(c), -1, "");
  return out;
}

}  // namespace orthant
