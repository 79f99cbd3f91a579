// The deck in a checkpoint against the present one: what is told, what is refused, and that every key has a rule that
// fits its kind.
// ranks: 1
// labels: smoke
// seconds: 30
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "deck/all_keys.hpp"
#include "deck/changes.hpp"
#include "deck/check.hpp"
#include "deck/registry.hpp"
#include "orthant/error.hpp"

namespace orthant {
namespace {

using Texts = std::vector<std::string>;
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string base =
    "run.steps = 10\n"
    "model = { family = \"llama\", layers = 4, hidden = 16, ffn = 24, heads = 4, vocab = 65 }\n"
    "data = { train = [\"a\", \"b\"], sequence = 16 }\n"
    "batch = { global = 4, micro = 1 }\n";

/// As a run has it: checked, with the settled sizes written back.
Deck deck_of(const Texts& overrides, int64_t ranks = 1) {
  Deck deck = checked_deck(base, "run.toml", overrides, ranks);
  Texts problems;
  const ModelConfig model = model_config(deck, problems);
  throw_problems("run.toml", problems);
  set_model_keys(deck, model);
  return deck;
}

std::vector<DeckChange> changes(const Texts& before, const Texts& now, const KeptFacts& kept = {},
                                int64_t ranks_before = 1, int64_t ranks_now = 1) {
  return deck_changes(deck_of(before, ranks_before).resolved(), deck_of(now, ranks_now), kept);
}

std::string refusal(const std::vector<DeckChange>& list) {
  try {
    refuse_changes(list, "runs/x/checkpoints/step-00000005");
  } catch (const UsageError& e) {
    EXPECT_TRUE(e.agreed());
    return e.what();
  }
  return "";
}

std::map<std::string, OnResume> rules_of(const std::vector<DeckChange>& list) {
  std::map<std::string, OnResume> out;
  for (const DeckChange& c : list) out[c.key] = c.rule;
  return out;
}

TEST(DeckChanges, NoneWhereNothingChanged) {
  EXPECT_TRUE(changes({}, {}).empty());
  const Texts many = {"optimizer.lr=1e-4",    "data.weights=[1, 3]", "mesh.tp=2",
                      "model.rope.type=yarn", "model.rope.factor=4", "model.rope.original_context=4"};
  EXPECT_TRUE(changes(many, many, {}, 2, 2).empty());
  EXPECT_TRUE(deck_changes("", deck_of({"model.hidden=32"})).empty());  // a converted checkpoint has no deck
}

TEST(DeckChanges, ValuesAreComparedNotTheirText) {
  const Deck now = deck_of({"optimizer.lr=1e-4", "optimizer.betas=[0.9, 0.95]", "batch.global=4000"});
  EXPECT_TRUE(
      deck_changes("optimizer.lr = 0.0001\noptimizer.betas = [9e-1, 95e-2]\nbatch.global = 4e3\n", now).empty());
  EXPECT_EQ(deck_changes("optimizer.lr = 0.00011\n", now).size(), 1u);
}

TEST(DeckChanges, TellsOldAndNew) {
  const auto list = changes({}, {"mesh.tp=2", "optimizer.lr=1e-4", "run.steps=20", "data.weights=[1,3]"}, {}, 2, 2);
  EXPECT_EQ(
      tell_changes(list),
      (Texts{"run.steps was 10, is 20",
             "data.weights was not given (in proportion to the tokens of each prefix), is [1.0, 3.0]: the mixture "
             "changes from here on, no sample is repeated",
             "mesh.tp was 1, is 2", "mesh.dp was 2, is 1", "optimizer.lr was 3e-4, is 1e-4"}));
  EXPECT_EQ(refusal(list), "");
  EXPECT_EQ(
      tell_changes(changes({"data.weights=[1,3]"}, {})),
      Texts{"data.weights was [1.0, 3.0], is not given (in proportion to the tokens of each prefix): the mixture "
            "changes from here on, no sample is repeated"});
}

TEST(DeckChanges, FreeKeysAreNotListed) {
  EXPECT_TRUE(changes({}, {"run.output=elsewhere", "checkpoint.every=3", "checkpoint.keep=5", "log.every=7",
                           "run.threads=3", "memory.limit_gb=100", "run.time_limit=50", "comm.overlap=false",
                           "guard.max_skips=2", "checkpoint.resume=never", "model.init_std=0.5"})
                  .empty());
}

TEST(DeckChanges, AnotherRunIsRefusedWithEveryReason) {
  const auto list = changes({}, {"model.hidden=32", "run.seed=5", "mesh.tp=1", "data.split=1,1,1", "batch.micro=2"});
  const std::string message = refusal(list);
  for (const char* part :
       {"(checkpoint runs/x/checkpoints/step-00000005):",
        "\n  model.hidden was 16 when the checkpoint was written, and is 32 now",
        "\n  run.seed was 1234 when the checkpoint was written, and is 5 now",
        "\n  data.seed was 1234 when the checkpoint was written, and is 5 now",
        "\n  data.split was \"969,30,1\" when the checkpoint was written, and is \"1,1,1\" now",
        "\n  model.head_dim was 4 when the checkpoint was written, and is 8 now", "Set the old values again",
        "another run.output", "orthant convert runs/x/checkpoints/step-00000005 FOLDER", "model.load"})
    EXPECT_TRUE(has(message, part)) << part << "\nis not in: " << message;
  EXPECT_FALSE(has(message, "batch.micro"));
  EXPECT_EQ(tell_changes(list), Texts{"batch.micro was 1, is 2"});
}

TEST(DeckChanges, ARefusalThatConvertingDoesNotHelpDoesNotOfferIt) {
  const std::string message = refusal(changes({}, {"data.seed=5"}));
  EXPECT_TRUE(has(message, "data.seed was 1234")) << message;
  EXPECT_TRUE(has(message, "Set the old value again, or begin")) << message;
  EXPECT_FALSE(has(message, "convert")) << message;
}

TEST(DeckChanges, ALongerContextComesWithALongerSequence) {
  const Texts longer = {"model.context=64", "model.rope_theta=500000"};
  const auto alone = changes({}, longer);
  EXPECT_EQ(rules_of(alone), (std::map<std::string, OnResume>{{"model.context", OnResume::refused},
                                                              {"model.rope_theta", OnResume::refused}}));
  EXPECT_TRUE(has(refusal(alone), "together with data.sequence only"));

  Texts phase = longer;
  phase.insert(phase.end(), {"data.sequence=64", "data.samples=500", "model.rope.type=yarn", "model.rope.factor=4",
                             "model.rope.original_context=16", "model.rope.mscale=0.7"});
  KeptFacts kept;
  kept.samples = 40;
  const auto together = changes({}, phase, kept);
  EXPECT_EQ(refusal(together), "");
  const Texts told = tell_changes(together);
  for (const char* line : {"data.sequence was 16, is 64: a new phase of the data begins",
                           "model.context was 16, is 64", "data.samples was 40, is 500: the length of the new phase",
                           "model.rope.factor was not given (none; linear, llama3 and yarn require it), is 4.0",
                           "model.rope.type was \"default\", is \"yarn\""})
    EXPECT_NE(std::find(told.begin(), told.end(), line), told.end()) << line;
  EXPECT_EQ(rules_of(together).at("model.rope_theta"), OnResume::phase);
}

TEST(DeckChanges, LearnedPositionsKeepTheirNumber) {
  const Texts gpt2 = {"model.family=gpt2", "model.context=16"};
  const auto list = changes(gpt2, {"model.family=gpt2", "model.context=32", "data.sequence=32"});
  EXPECT_TRUE(has(refusal(list),
                  "model.context was 16 when the checkpoint was written, and is 32 now (it is the "
                  "number of learned positions)"))
      << refusal(list);
}

TEST(DeckChanges, ZeroStandsForTheNumberInTheCheckpoint) {
  KeptFacts kept;
  kept.samples = 40;
  kept.decay_steps = 10;
  for (const Texts& same : {Texts{}, Texts{"data.samples=40"}, Texts{"optimizer.decay_steps=10"}}) {
    EXPECT_TRUE(changes({}, same, kept).empty());
    EXPECT_TRUE(changes(same, {}, kept).empty());
  }
  EXPECT_TRUE(has(refusal(changes({}, {"data.samples=50"}, kept)),
                  "data.samples was 40 when the checkpoint was written, and is 50 now"));
  EXPECT_TRUE(has(refusal(changes({"data.samples=40"}, {"data.samples=50"})), "data.samples was 40"));
  EXPECT_TRUE(changes({}, {"data.samples=50"}).empty());  // nobody knows what the 0 stood for
  EXPECT_EQ(tell_changes(changes({}, {"optimizer.decay_steps=30"}, kept)),
            Texts{"optimizer.decay_steps was 10, is 30"});
  EXPECT_TRUE(changes({}, {"optimizer.decay_steps=30"}).empty());
}

TEST(DeckChanges, TheOptimiserMayChangeWhereNoStateOfItIsKept) {
  const auto list = changes({}, {"optimizer.name=sgd"});
  EXPECT_TRUE(has(refusal(list), "optimizer.name was \"adamw\" when the checkpoint was written, and is \"sgd\" now"));
  EXPECT_TRUE(tell_changes(list).empty());
  KeptFacts kept;
  kept.optimizer = false;
  const auto weights_only = changes({}, {"optimizer.name=sgd"}, kept);
  EXPECT_EQ(refusal(weights_only), "");
  EXPECT_EQ(tell_changes(weights_only),
            Texts{"optimizer.name was \"adamw\", is \"sgd\": the checkpoint holds no state "
                  "of an optimiser"});
}

TEST(DeckChanges, ForeignTextIsToldNotRefused) {
  const Deck now = deck_of({});
  const auto list = deck_changes(
      "optimizer.colour = 3\n[novel]\nkey = \"x\"\n[novel.deep]\nlist = [1, 2]\n[mesh]\ntp = \"two\"\nmap = 7\n",
      now);
  EXPECT_EQ(tell_changes(list), (Texts{"mesh.tp was \"two\", is 1", "mesh.map was 7, is \"\"",
                                       "optimizer.colour was 3: not a key of this version",
                                       "novel.key was \"x\": not a key of this version",
                                       "novel.deep.list was [1, 2]: not a key of this version"}));
  EXPECT_EQ(refusal(list), "");
  EXPECT_TRUE(has(refusal(deck_changes("optimizer.name = \"adafactor\"\n", now)),
                  "optimizer.name was \"adafactor\" when the checkpoint was written, and is \"adamw\" now"));

  const auto broken = deck_changes("[run\n", now);
  ASSERT_EQ(tell_changes(broken).size(), 1u);
  EXPECT_TRUE(tell_changes(broken)[0].starts_with("/deck: not TOML (1:")) << tell_changes(broken)[0];
  EXPECT_EQ(refusal(broken), "");
}

TEST(DeckChanges, AKeyThatTheWritingVersionDidNotHaveIsUnchanged) {
  EXPECT_TRUE(deck_changes("[run]\nsteps = 10\n", deck_of({"data.weights=[1,3]", "batch.micro=2"})).empty());
}

TEST(DeckChanges, MixturesAndLatentAttention) {
  const Texts moe = {"model.family=mixtral", "model.moe.experts=4", "model.moe.top_k=2", "model.moe.ffn=16"};
  Texts other = moe;
  other.insert(other.end(), {"model.moe.top_k=1", "model.moe.aux_loss=0.01", "model.moe.capacity_factor=1.5"});
  const auto list = changes(moe, other);
  EXPECT_EQ(rules_of(list), (std::map<std::string, OnResume>{{"model.moe.top_k", OnResume::refused},
                                                             {"model.moe.aux_loss", OnResume::told},
                                                             {"model.moe.capacity_factor", OnResume::told}}));
  // to another family: the experts go, and no key of theirs is compared with a default that has no meaning
  const auto dense = rules_of(changes(moe, {}));
  EXPECT_EQ(dense.at("model.family"), OnResume::refused);
  EXPECT_EQ(dense.at("model.moe.experts"), OnResume::refused);
  EXPECT_FALSE(dense.count("model.moe.groups"));
}

/// The rules as people rely on them; what is not named here is checked by its section.
TEST(DeckChanges, RulesByKind) {
  const std::map<std::string, OnResume> wanted = {
      {"run.output", OnResume::free},           {"run.steps", OnResume::told},
      {"run.seed", OnResume::refused},          {"run.reproducible", OnResume::told},
      {"model.load", OnResume::free},           {"model.family", OnResume::refused},
      {"model.norm_eps", OnResume::refused},    {"model.qkv_bias", OnResume::refused},
      {"model.dropout", OnResume::told},        {"model.z_loss", OnResume::told},
      {"model.context", OnResume::phase},       {"model.rope_theta", OnResume::phase},
      {"model.rope.factor", OnResume::phase},   {"model.mla.q_lora_rank", OnResume::refused},
      {"model.moe.router", OnResume::refused},  {"model.moe.bias_rate", OnResume::told},
      {"data.train", OnResume::told},           {"data.weights", OnResume::stream},
      {"data.sequence", OnResume::stream},      {"data.seed", OnResume::refused},
      {"data.split", OnResume::refused},        {"data.samples", OnResume::refused},
      {"data.cache", OnResume::free},           {"memory.recompute", OnResume::told},
      {"memory.limit_gb", OnResume::free},      {"optimizer.name", OnResume::refused},
      {"optimizer.decay_steps", OnResume::told}};
  for (const auto& [name, rule] : wanted) {
    ASSERT_TRUE(find_key(name)) << name;
    EXPECT_EQ(all_keys()[*find_key(name)].on_resume, rule) << name;
  }
  const std::map<std::string, OnResume> sections = {
      {"checkpoint", OnResume::free}, {"log", OnResume::free},      {"guard", OnResume::free},
      {"comm", OnResume::free},       {"device", OnResume::free},   {"mesh", OnResume::told},
      {"layout", OnResume::told},     {"pipeline", OnResume::told}, {"context", OnResume::told},
      {"zero", OnResume::told},       {"batch", OnResume::told},    {"precision", OnResume::told}};
  for (const auto& key : all_keys()) {
    const auto it = sections.find(key.section);
    if (it == sections.end()) continue;
    EXPECT_EQ(key.on_resume, it->second) << key.name;
  }
}

}  // namespace
}  // namespace orthant
