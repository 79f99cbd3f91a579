// See hf_companions.hpp.
#include "checkpoint/hf_companions.hpp"

#include <filesystem>

#include "checkpoint/folders.hpp"
#include "checkpoint/strict_json.hpp"

namespace orthant {

static constexpr const char* names[] = {"tokenizer.json",          "tokenizer.model",     "tokenizer_config.json",
                                        "special_tokens_map.json", "vocab.json",          "merges.txt",
                                        "added_tokens.json",       "chat_template.jinja", "generation_config.json"};

CompanionFiles read_companions(const std::string& folder) {
  CompanionFiles files;
  for (const char* name : names) {
    const std::string path = folder + "/" + name;
    std::error_code error;
    if (std::filesystem::exists(path, error)) files[name] = read_small_file(path);
  }
  return files;
}

void write_companions(const std::string& folder, const CompanionFiles& files) {
  for (const auto& [name, content] : files) write_file_durably(folder + "/" + name, content);
}

}  // namespace orthant
