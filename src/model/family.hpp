// A model family: what its Hugging Face files call each of our parameters.
#pragma once

#include <functional>
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
/// UsageError for a name that is not in the list.
const Family& family(const std::string& name);

}  // namespace orthant
