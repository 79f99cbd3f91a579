// Help: the deck reference, the Megatron table, and answers to Megatron options; and that the decks we ship read.
// ranks: 1
// labels: smoke
// seconds: 30
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "deck/check.hpp"
#include "deck/convert.hpp"
#include "deck/help_text.hpp"
#include "deck/keys_model.hpp"
#include "deck/megatron.hpp"
#include "deck/registry.hpp"
#include "orthant/error.hpp"

namespace orthant {
namespace {

using Texts = std::vector<std::string>;
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string help(const Texts& args) {
  try {
    return help_text(args);
  } catch (const UsageError& error) {
    return std::string("usage: ") + error.what();
  }
}

TEST(Help, DeckShowsEveryParameter) {
  const std::string text = help({"deck"});
  for (const auto& key : all_keys()) {
    EXPECT_TRUE(has(text, "\n  " + key.leaf + "\n")) << key.name;
    EXPECT_TRUE(has(text, "[" + key.section + "]")) << key.name;
  }
  EXPECT_LT(text.find("[run]"), text.find("[model]"));
  EXPECT_LT(text.find("[model]"), text.find("[device]"));
}

TEST(Help, OneSectionOrKey) {
  const std::string text = help({"deck", "optimizer"});
  EXPECT_TRUE(has(text, "number; default 3e-4; range >= 0"));
  EXPECT_TRUE(has(text, "one of \"adamw\", \"sgd\", \"muon\", \"lion\""));
  EXPECT_TRUE(has(text, "integer, steps; default 0"));
  EXPECT_FALSE(has(text, "[run]"));
  EXPECT_TRUE(has(help({"deck", "model"}), "[model.rope]"));
  EXPECT_TRUE(has(help({"deck", "run"}), "required"));
  EXPECT_FALSE(has(help({"deck", "mesh.tp"}), "\n  pp\n"));
}

TEST(Help, WhatAChangeOnResumeMeans) {
  const std::string text = help({"deck"});
  for (const auto& key : all_keys()) {
    std::string facts;  // of this key, without its line breaks
    for (std::istringstream words(help({"deck", key.name})); words.good();) {
      std::string word;
      words >> word;
      facts += word + " ";
    }
    EXPECT_TRUE(has(facts, "; on resume: " + rule_name(key.on_resume) + " ")) << facts;
  }
  for (const char* rule : {"free", "told", "phase", "stream", "refused"}) {
    const std::string line = "\n  " + std::string(rule) + " ";
    EXPECT_TRUE(has(text, line)) << rule;
    EXPECT_EQ(text.find(line), text.rfind(line)) << rule << " is explained once";
  }
  const std::string one = help({"deck", "mesh.tp"});
  EXPECT_TRUE(has(one, "integer, ranks; default 1; range >= 1; on resume: told"));
  EXPECT_TRUE(has(one, "\n  told     may change; the console"));
  EXPECT_FALSE(has(one, "refused"));  // of the words only those that occur
}

TEST(Help, UnknownTopicsNameTheKnown) {
  EXPECT_TRUE(has(help({"dekc"}), "help dekc: no such topic; topics: deck"));
  EXPECT_TRUE(has(help({"deck", "optimiser"}), "the nearest is optimizer"));
  EXPECT_TRUE(has(help({"deck", "run", "more"}), "usage: "));
  EXPECT_TRUE(has(help({}), "orthant help megatron"));
}

TEST(Megatron, EveryRowNamesAKeyThatExistsAndAValueThatIsAllowed) {
  std::set<std::string> options;
  std::set<std::pair<std::string, std::string>> rows;
  for (const auto& row : megatron_options()) {
    options.insert(row.option);
    EXPECT_TRUE(rows.insert({row.option, row.value}).second) << "twice: " << row.option << " " << row.value;
    if (row.key.empty()) {
      EXPECT_FALSE(row.note.empty()) << row.option;
      continue;
    }
    const auto index = find_key(row.key);
    ASSERT_TRUE(index) << row.option << " -> " << row.key;
    if (row.ours.empty()) continue;
    const auto& info = all_keys()[*index];
    EXPECT_EQ(convert(info, override_value(info, row.ours), "/").problem, "") << row.option;
  }
  EXPECT_GE(options.size(), 80u);
  const std::string table = help({"megatron"});
  for (const auto& option : options) EXPECT_TRUE(has(table, "--" + option)) << option;
}

TEST(Megatron, Answers) {
  const auto answer = [](const std::string& option, const std::string& value) {
    return megatron_answer(option, value).value_or("none");
  };
  for (const char* spelling :
       {"--tensor-model-parallel-size", "tensor-model-parallel-size", "tensor_model_parallel_size"})
    EXPECT_TRUE(has(answer(spelling, "4"), "mesh.tp = 4")) << spelling;
  EXPECT_TRUE(has(answer("tensor-model-parallel-size", ""), "mesh.tp"));
  EXPECT_TRUE(has(answer("use-distributed-optimizer", ""), "zero.stage = 1"));
  EXPECT_TRUE(has(answer("cp-comm-type", "p2p"), "context.method = \"ring\""));
  EXPECT_TRUE(has(answer("cp-comm-type", ""), "context.method = \"all_to_all\""));
  EXPECT_TRUE(has(answer("data_parallel_sharding_strategy", "optim_grads_params"), "zero.stage = 3"));
  EXPECT_TRUE(has(answer("lr-decay-style", "WSD"), "optimizer.schedule = \"wsd\""));
  EXPECT_TRUE(has(answer("sequence-parallel", "true"), "mesh.sequence_parallel = true"));
  EXPECT_TRUE(has(answer("sequence-parallel", "false"), "mesh.sequence_parallel = false"));
  EXPECT_FALSE(has(answer("lr-warmup-samples", "4096"), "= 4096"));  // samples are not steps
  EXPECT_EQ(answer("no-such-option", "1"), "none");
}

TEST(Megatron, OptionsTypedWhereKeysWereMeant) {
  const auto report = [](const std::string& text, const Texts& overrides) {
    Texts problems;
    Deck::parse(text, "m.toml", overrides, {"run.steps", "data.train", "data.sequence", "batch.global"}, problems);
    std::string out;
    for (const auto& p : problems) out += p + "\n";
    return out;
  };
  EXPECT_TRUE(has(report("[model]\nnum-layers = 24\n", {}), "m.toml:2: unknown key model.num-layers"));
  EXPECT_TRUE(has(report("[model]\nnum-layers = 24\n", {}), "model.layers = 24"));
  EXPECT_TRUE(has(report("micro_batch_size = 2\n", {}), "batch.micro = 2"));
  EXPECT_TRUE(has(report("", {"--bf16"}), "precision.compute = \"bf16\""));
  EXPECT_TRUE(has(report("", {"--pipeline-model-parallel-size=8"}), "mesh.pp = 8"));
  EXPECT_TRUE(has(report("", {"--pipeline-model-parallel-size", "8"}), "mesh.pp = 8"));
  EXPECT_TRUE(has(report("", {"global_batch_size=8"}), "batch.global = 8"));
  EXPECT_TRUE(has(report("", {"lr=1"}), "optimizer.lr = 1"));
  const std::string two = report("", {"--bf16", "--seed", "7", "run.steps=3"});
  EXPECT_TRUE(has(two, "run.seed = 7"));
  EXPECT_EQ(std::count(two.begin(), two.end(), '\n'), 2);
}

// The decks we ship pass every check at a sensible number of ranks.
TEST(InputDecks, Read) {
  namespace fs = std::filesystem;
  const fs::path input = fs::path(ORTHANT_REGRESSION_DIR).parent_path() / "input";
  for (const auto& [name, ranks] :
       std::vector<std::pair<std::string, int64_t>>{{"quickstart", 4}, {"gpt2-124m", 8}, {"llama-8b", 256}}) {
    const auto path = (input / (name + ".toml")).string();
    const Deck deck = checked_deck(Deck::read_text(path), path, {}, ranks);
    EXPECT_EQ(deck.name(), name);
    Texts problems;
    EXPECT_GT(model_config(deck, problems).layers, 0);
    EXPECT_TRUE(problems.empty());
    // and again from their resolved form
    EXPECT_NO_THROW(checked_deck(deck.resolved(), "deck.toml", {}, ranks)) << name;
  }
}

}  // namespace
}  // namespace orthant
