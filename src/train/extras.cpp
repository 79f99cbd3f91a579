// See extras.hpp.
#include "train/extras.hpp"

#include <filesystem>

#include "checkpoint/hf_companions.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/strict_json.hpp"
#include "orthant/error.hpp"

namespace orthant {

namespace {

/// The name under which tools look for a tokenizer of this kind; so a newer one also replaces an older one, whatever
/// the two files were called.
std::string usual_name(const std::string& path) {
  const std::filesystem::path file(path);
  const std::string extension = file.extension().string();
  if (extension == ".model" || extension == ".json") return "tokenizer" + extension;
  return file.filename().string();
}

void add_deck_tokenizer(const Deck& deck, bool resumed, CompanionFiles& files) {
  const std::string& path = deck[keys::data::tokenizer];
  if (path.empty() || path == "bytes") return;
  const std::string name = usual_name(path);
  try {
    files[name] = read_small_file(path);
  } catch (const DataError& e) {
    if (resumed && files.count(name)) return;
    throw DataError(deck.show(keys::data::tokenizer) + ": " + e.what() +
                    "; checkpoints carry this file, name one that can be read");
  }
}

}  // namespace

CheckpointExtras run_extras(const RunPlan& plan, const CheckpointExtras* resumed) {
  CheckpointExtras extras;
  extras.deck_text = plan.deck.resolved();
  std::string original;
  if (resumed) {
    original = resumed->config_json;
    extras.tokenizer_files = resumed->tokenizer_files;
  } else if (const std::string& folder = plan.deck[keys::model::load]; !folder.empty()) {
    original = read_small_file(folder + "/config.json");
    extras.tokenizer_files = read_companions(folder);
  }
  add_deck_tokenizer(plan.deck, resumed != nullptr, extras.tokenizer_files);
  ModelConfig model = plan.model;
  // says nothing about weights that are there already: the value they came with stays, unless the deck has its own
  if (!original.empty() && !plan.deck.given(keys::model::init_std))
    model.init_std = parse_hf_config(original, "config.json", nullptr).init_std;
  try {
    extras.config_json = write_hf_config(model, "F32", original);
  } catch (const UsageError&) {
    // settings that no Hugging Face config has: the checkpoint goes without, and convert says so
  }
  return extras;
}

}  // namespace orthant
