// What a run's checkpoints carry beside tensors: the tokenizer the deck names, and what a checkpoint already held.
// ranks: 1
// labels: smoke
// seconds: 30
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/hf_config.hpp"
#include "model_file_helpers.hpp"
#include "plan_kit.hpp"
#include "train/extras.hpp"

namespace orthant {
namespace {

using kit::Keys;
using kit::operator+;
using testing_files::expect_error;
using testing_files::TempFolder;
using testing_files::write_text;
using Files = std::map<std::string, std::string>;
using json = nlohmann::json;

RunPlan plan_of(const Keys& keys) { return kit::plan_of(Keys{"model.family=llama"} + keys, 1); }

/// A model folder that says where it comes from; weights are not looked at.
void make_source(const std::string& folder, double init_std) {
  ModelConfig model = plan_of({}).model;
  model.init_std = init_std;
  json config = json::parse(write_hf_config(model, "F32"));
  config["eos_token_id"] = 7;
  std::filesystem::create_directories(folder);
  write_text(folder + "/config.json", config.dump());
  write_text(folder + "/tokenizer.json", "of the folder");
  write_text(folder + "/merges.txt", "a b\n");
}

TEST(RunExtras, NothingButDeckAndConfigFromScratch) {
  for (const Keys& keys : {Keys{}, Keys{"data.tokenizer=bytes"}}) {
    const RunPlan plan = plan_of(keys);
    const CheckpointExtras extras = run_extras(plan, nullptr);
    EXPECT_EQ(extras.deck_text, plan.deck.resolved());
    EXPECT_EQ(extras.config_json, write_hf_config(plan.model, "F32"));
    EXPECT_TRUE(extras.tokenizer_files.empty());
    EXPECT_EQ(extras.source_dtype, "");
    EXPECT_EQ(extras.mesh, "");
  }
  // settings that no config.json has: the checkpoint is written all the same
  EXPECT_EQ(run_extras(plan_of({"model.qkv_bias=true"}), nullptr).config_json, "");
}

TEST(RunExtras, TheTokenizerOfTheDeckUnderItsUsualName) {
  TempFolder folder;
  const std::string pieces = std::string("\0pieces\xFF", 8);
  write_text(folder.path("english-32k.model"), pieces);
  write_text(folder.path("words.json"), "{}");
  write_text(folder.path("plain.vocabulary"), "a b");
  EXPECT_EQ(run_extras(plan_of({"data.tokenizer=" + folder.path("english-32k.model")}), nullptr).tokenizer_files,
            (Files{{"tokenizer.model", pieces}}));
  EXPECT_EQ(run_extras(plan_of({"data.tokenizer=" + folder.path("words.json")}), nullptr).tokenizer_files,
            (Files{{"tokenizer.json", "{}"}}));
  EXPECT_EQ(run_extras(plan_of({"data.tokenizer=" + folder.path("plain.vocabulary")}), nullptr).tokenizer_files,
            (Files{{"plain.vocabulary", "a b"}}));
  for (const std::string& bad : {folder.path("none.model"), folder.path()})
    expect_error<DataError>([&] { run_extras(plan_of({"data.tokenizer=" + bad}), nullptr); },
                            {"data.tokenizer = \"" + bad + "\"", "checkpoints carry this file"});
}

TEST(RunExtras, TheFolderOfModelLoadAndTheTokenizerBesideIt) {
  TempFolder folder;
  make_source(folder.path("source"), 0.5);
  const Keys load = {"model.load=" + folder.path("source")};
  const CheckpointExtras extras = run_extras(plan_of(load), nullptr);
  EXPECT_EQ(extras.tokenizer_files, (Files{{"merges.txt", "a b\n"}, {"tokenizer.json", "of the folder"}}));
  // the same model in the same format: the text itself
  EXPECT_EQ(extras.config_json, testing_files::read_text(folder.path("source/config.json")));

  write_text(folder.path("mine.json"), "of the deck");
  const Keys mine = load + Keys{"data.tokenizer=" + folder.path("mine.json"), "model.init_std=0.25"};
  const CheckpointExtras other = run_extras(plan_of(mine), nullptr);
  EXPECT_EQ(other.tokenizer_files, (Files{{"merges.txt", "a b\n"}, {"tokenizer.json", "of the deck"}}));
  EXPECT_EQ(json::parse(other.config_json)["initializer_range"], 0.25);
  EXPECT_EQ(json::parse(other.config_json)["eos_token_id"], 7);
}

TEST(RunExtras, ACheckpointCarriesOn) {
  TempFolder folder;
  make_source(folder.path("source"), 0.5);
  write_text(folder.path("new.model"), "new");
  CheckpointExtras kept = run_extras(plan_of({"model.load=" + folder.path("source")}), nullptr);
  kept.source_dtype = "BF16";
  kept.deck_text = "of the former life";
  std::filesystem::remove_all(folder.path("source"));

  const RunPlan longer = plan_of({"model.context=64", "data.sequence=64", "model.rope_theta=500000"});
  const CheckpointExtras next = run_extras(longer, &kept);
  EXPECT_EQ(next.tokenizer_files, kept.tokenizer_files);
  EXPECT_EQ(next.deck_text, longer.deck.resolved());
  const json config = json::parse(next.config_json);
  EXPECT_EQ(config["eos_token_id"], 7);
  EXPECT_EQ(config["initializer_range"], 0.5);
  EXPECT_EQ(config["max_position_embeddings"], 64);
  EXPECT_EQ(config["rope_parameters"]["rope_theta"], 500000);

  kept.tokenizer_files = {{"tokenizer.model", "old"}};
  EXPECT_EQ(run_extras(plan_of({"data.tokenizer=" + folder.path("new.model")}), &kept).tokenizer_files,
            (Files{{"tokenizer.model", "new"}}));
  EXPECT_EQ(run_extras(plan_of({"data.tokenizer=" + folder.path("gone.model")}), &kept).tokenizer_files,
            (Files{{"tokenizer.model", "old"}}));
  expect_error<DataError>([&] { run_extras(plan_of({"data.tokenizer=" + folder.path("gone.json")}), &kept); },
                          {"data.tokenizer", "gone.json"});
}

}  // namespace
}  // namespace orthant
