// A model family: what its Hugging Face files call each of our parameters.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "orthant/model_config.hpp"
#include "orthant/param.hpp"

namespace orthant {

struct Family {
  std::string name;
  /// Where the parameter lies. `layer` is -1 outside blocks; `leaf` is the name after "layers.<n>.".
  std::function<FileTensor(const ModelConfig&, int64_t layer, const std::string& leaf)> file;
};

Family gpt2_family();
Family llama_family();
Family qwen3_family();
Family mixtral_family();
Family deepseek_family();

/// The name of an expert's parameter: "moe.experts.12.up.weight" is number "12", part "up.weight".
struct ExpertLeaf {
  std::string number, part;
};
inline std::optional<ExpertLeaf> expert_leaf(const std::string& leaf) {
  const std::string start = "moe.experts.";
  const auto dot = leaf.find('.', start.size());
  if (!leaf.starts_with(start) || dot == std::string::npos) return std::nullopt;
  return ExpertLeaf{leaf.substr(start.size(), dot - start.size()), leaf.substr(dot + 1)};
}

/// Embedding, last norm and head in the files of llama and of all families that took its names over.
std::optional<FileTensor> llama_outer_file(const ModelConfig& config, const std::string& leaf);

/// UsageError for a name that is not in the list.
const Family& family(const std::string& name);

}  // namespace orthant
