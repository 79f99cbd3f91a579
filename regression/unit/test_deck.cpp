// Reading decks: types, ranges, names, overrides, paths, and one report for all problems.
// ranks: 1
// labels: smoke asan
// seconds: 30
#include <gtest/gtest.h>

#include <filesystem>

#include "deck/all_keys.hpp"
#include "deck/nearest.hpp"
#include "deck/registry.hpp"
#include "orthant/error.hpp"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

const std::string small = R"(
[run]
steps = 10
[data]
train = ["corpus/a", "/abs/b"]
sequence = 16
[batch]
global = 8
)";

Deck read(const std::string& text, const Texts& overrides = {}) {
  return Deck::parse(text, "some/folder/small.toml", overrides);
}

Texts problems(const std::string& text, const Texts& overrides = {}) {
  Texts out;
  Deck::parse(text, "small.toml", overrides, {}, out);
  return out;
}

/// The one problem that contains `part`; fails if there is none.
std::string find(const Texts& all, const std::string& part) {
  for (const auto& p : all)
    if (p.find(part) != std::string::npos) return p;
  std::string seen;
  for (const auto& p : all) seen += "\n  " + p;
  ADD_FAILURE() << "no problem says '" << part << "' among" << seen;
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Deck, ValuesAndDefaults) {
  const Deck deck = read(small);
  EXPECT_EQ(deck[keys::run::steps], 10);
  EXPECT_EQ(deck[keys::run::seed], 1234);
  EXPECT_EQ(deck[keys::data::seed], 1234);
  EXPECT_EQ(deck[keys::optimizer::lr], 3e-4);
  EXPECT_EQ(deck[keys::optimizer::betas], (std::vector<double>{0.9, 0.95}));
  EXPECT_EQ(deck[keys::model::family], "gpt2");
  EXPECT_EQ(deck[keys::checkpoint::async], true);
  EXPECT_EQ(deck[keys::zero::bucket], 40'000'000);
  EXPECT_TRUE(deck.given(keys::run::steps));
  EXPECT_FALSE(deck.given(keys::run::seed));
  EXPECT_FALSE(deck.has(keys::model::heads));
  EXPECT_EQ(deck.get_or(keys::model::heads, int64_t{7}), 7);
  EXPECT_THROW(deck[keys::model::heads], LogicError);
  EXPECT_EQ(deck.name(), "small");
  EXPECT_EQ(deck.show(keys::run::steps), "run.steps = 10 (small.toml:3)");
}

TEST(Deck, EveryDefaultObeysItsOwnRange) {
  for (const auto& key : all_keys()) {
    EXPECT_FALSE(key.help.empty()) << key.name;
    if (key.required || !key.derived.empty() || key.is_path) continue;
    const std::string value = toml_text(key.value);
    for (const auto& p : problems(small, {key.name + "=" + value})) ADD_FAILURE() << p;
  }
  EXPECT_GT(all_keys().size(), 120u);
}

TEST(Deck, PathsOfTheFileAreRelativeToItsFolderAndOverridesToTheWorkingFolder) {
  const auto here = fs::current_path();
  const Deck deck = read(small + "[checkpoint]\nfolder = \"../ck\"\n");
  EXPECT_EQ(deck[keys::data::train], (Texts{(here / "some/folder/corpus/a").string(), "/abs/b"}));
  EXPECT_EQ(deck[keys::run::output], (here / "runs/small").string());
  EXPECT_EQ(deck[keys::checkpoint::folder], (here / "some/ck").string());
  const Deck other = read(small, {"data.train=x/y", "run.output=out/"});
  EXPECT_EQ(other[keys::data::train], Texts{(here / "x/y").string()});
  EXPECT_EQ(other[keys::run::output], (here / "out").string());
  EXPECT_FALSE(other.has(keys::checkpoint::folder));  // follows run.output, also when the resolved deck moves
  // run.output is relative to the working folder in the file too
  const Deck third =
      read("[run]\nsteps = 1\noutput = \"mine\"\n[data]\ntrain = \"a\"\nsequence = 4\n[batch]\nglobal = 1\n");
  EXPECT_EQ(third[keys::run::output], (here / "mine").string());
  EXPECT_EQ(third[keys::data::train].size(), 1u);
}

TEST(Deck, WordsThatMayAlsoBePaths) {
  const auto here = fs::current_path();
  EXPECT_EQ(read(small)[keys::checkpoint::resume], "auto");
  EXPECT_EQ(read(small, {"checkpoint.resume=never"})[keys::checkpoint::resume], "never");
  EXPECT_EQ(read(small, {"checkpoint.resume=a/step-1"})[keys::checkpoint::resume], (here / "a/step-1").string());
  EXPECT_EQ(read(small, {"pipeline.schedule=mine.csv"})[keys::pipeline::schedule], (here / "mine.csv").string());
  EXPECT_EQ(read(small, {"data.tokenizer=bytes"})[keys::data::tokenizer], "bytes");
  find(problems(small, {"checkpoint.resume=nevr"}), "\"auto\", \"never\" or a path");
  find(problems(small, {"pipeline.schedule=interleave"}), "\"interleaved\"");
}

TEST(Deck, Overrides) {
  const Deck deck =
      read(small, {"run.steps=20", "model.rope.type=llama3", "optimizer.lr=1", "optimizer.betas=[0.8,0.9]",
                   "mesh.sequence_parallel=true", "run.output=\"with space\"", "checkpoint.mpi_info.cb_nodes=8",
                   "zero.bucket=1e6", "model.dropout=0", "--mesh.tp=2", "data.valid=[a,b]",
                   "precision.loss_scale=1024", "data.split=100,0,0"});
  EXPECT_EQ(deck[keys::run::steps], 20);
  EXPECT_EQ(deck[keys::rope::type], "llama3");
  EXPECT_EQ(deck[keys::optimizer::lr], 1.0);  // an integer where a number is expected
  EXPECT_EQ(deck[keys::optimizer::betas], (std::vector<double>{0.8, 0.9}));
  EXPECT_TRUE(deck[keys::mesh::sequence_parallel]);
  EXPECT_EQ(fs::path(deck[keys::run::output]).filename(), "with space");
  EXPECT_EQ(deck[keys::checkpoint::mpi_info].at("cb_nodes"), "8");
  EXPECT_EQ(deck[keys::zero::bucket], 1'000'000);
  EXPECT_EQ(deck[keys::mesh::tp], 2);
  EXPECT_EQ(deck[keys::data::valid].size(), 2u);
  EXPECT_EQ(deck[keys::precision::loss_scale], "1024");
  EXPECT_EQ(deck[keys::data::split], "100,0,0");
  EXPECT_EQ(deck.origin(keys::run::steps.index()), "override");
  EXPECT_EQ(read(small, {"run.steps=20", "run.steps=30"})[keys::run::steps], 30);  // the last one counts
  EXPECT_EQ(read(small, {"optimizer.betas=0.8,0.9"})[keys::optimizer::betas], (std::vector<double>{0.8, 0.9}));
  EXPECT_EQ(fs::path(read(small, {"run.output=2024"})[keys::run::output]).filename(), "2024");
}

TEST(Deck, MalformedOverridesAreProblems) {
  find(problems(small, {"run.steps"}), "override run.steps: expects run.steps=value");
  find(problems(small, {"=3"}), "expects section.key=value");
  find(problems(small, {"run=3"}), "run is a section");
  find(problems(small, {"run.steps="}), "expects an integer");
  find(problems(small, {"mesh.sequence_parallel=True"}), "expects true or false");
  find(problems(small, {"run.steps=1\nrun.seed=2"}), "expects an integer");
  EXPECT_EQ(problems(small, {"run.stpes=3", "x", "mesh.tp=a"}).size(), 3u);
}

TEST(Deck, UnknownKeysNameTheNearest) {
  EXPECT_TRUE(has(find(problems(small + "[mesh]\ntpp = 2\n"), "mesh.tpp"), "did you mean mesh.tp?"));
  EXPECT_TRUE(has(find(problems(small + "[run_]\n"), "[run_]"), "[run]"));
  find(problems(small, {"run.stpes=3"}), "did you mean run.steps?");
  find(problems(small, {"optimiser.lr=3"}), "did you mean optimizer.lr?");
  find(problems(small, {"model.warmup_steps=3"}), "did you mean optimizer.warmup_steps?");  // wrong section
  find(problems(small, {"model.moe.z_los=0"}), "did you mean model.moe.z_loss?");
  find(problems(small + "[model]\nlr = 3.0\n"), "small.toml:10: unknown key model.lr; did you mean optimizer.lr?");
  find(problems(small, {"optimizer.learning_rate=3"}), "did you mean optimizer.lr?");
  find(problems(small, {"model.n_layer=3"}), "did you mean model.layers?");
  // a whole section by another name: each of its keys gets an answer
  const auto all = problems(small + "[training]\nmax_steps = 3\nclip = 1\n");
  find(all, "did you mean run.steps?");
  find(all, "did you mean optimizer.clip?");
}

TEST(Deck, WrongTypes) {
  const auto type = [](const std::string& line, const std::string& key) { return find(problems(small + line), key); };
  EXPECT_TRUE(has(type("[model]\nlayers = \"four\"\n", "model.layers"),
                  "small.toml:10: model.layers = \"four\": expects an integer"));
  EXPECT_TRUE(has(type("[model]\nlayers = 2.5\n", "model.layers"), "2.5: expects an integer"));
  EXPECT_TRUE(has(type("[optimizer]\nlr = \"high\"\n", "optimizer.lr"), "expects a number"));
  EXPECT_TRUE(has(type("[optimizer]\nlr = true\n", "optimizer.lr"), "expects a number"));
  EXPECT_TRUE(has(type("[run]_\n", "small.toml:"), "small.toml:9:"));
  EXPECT_TRUE(has(type("[model]\nfamily = 3\n", "model.family"), "expects text"));
  EXPECT_TRUE(has(type("[model]\nbias = 1\n", "model.bias"), "expects true or false"));
  EXPECT_TRUE(has(type("[optimizer]\nbetas = [0.9, \"x\"]\n", "optimizer.betas"), "expects a list of numbers"));
  EXPECT_TRUE(has(type("[optimizer]\nbetas = [0.9]\n", "optimizer.betas"), "expects 2 values, not 1"));
  EXPECT_TRUE(has(type("[model]\nrope = 3\n", "model.rope"), "is a section"));
  EXPECT_TRUE(has(type("[mesh]\ntp = 2000-01-01\n", "mesh.tp"), "a date or time"));
}

TEST(Deck, Ranges) {
  find(problems(small, {"optimizer.lr=-1"}), "optimizer.lr = -1 is out of range: >= 0");
  find(problems(small, {"mesh.tp=0"}), "mesh.tp = 0 is out of range: >= 1 (ranks)");  // case O107
  find(problems(small, {"mesh.tp=-1"}), "mesh.tp = -1 is out of range");              // case O107
  find(problems(small, {"model.dropout=1"}), "0 <= x < 1");
  find(problems(small, {"optimizer.betas=[0.9,1.0]"}), "0 <= x < 1");
  find(problems(small, {"optimizer.eps=0"}), "> 0");
  find(problems(small, {"zero.stage=4"}), "0 <= x <= 3");
  find(problems(small, {"model.family=bert"}), "\"gpt2\", \"llama\", \"qwen3\", \"mixtral\", \"deepseek\"");
  find(problems(small, {"precision.loss_scale=-2"}), "a positive number");
  find(problems(small, {"checkpoint.files=-2"}), ">= -1");
  EXPECT_TRUE(problems(small, {"optimizer.clip=0"}).empty());
}

TEST(Deck, NumbersThatAreNone) {
  for (const char* value : {"inf", "-inf", "nan"}) {
    find(problems(small, {std::string("optimizer.lr=") + value}), "finite");
    find(problems(small + "[optimizer]\nlr = " + value + "\n"), "finite");
  }
  find(problems(small, {"run.seed=99999999999999999999"}), "64 bits");
  find(problems(small, {"run.steps=1e300"}), "does not fit");
  EXPECT_FALSE(problems(small + "[zero]\nbucket = 99999999999999999999\n").empty());
}

TEST(Deck, SyntaxErrorsHaveLineAndColumn) {
  const auto all = problems("[run]\nsteps = = 3\n");
  ASSERT_EQ(all.size(), 1u);  // what the rest lacks cannot be known
  EXPECT_TRUE(has(all[0], "small.toml:2:9: ")) << all[0];
  EXPECT_TRUE(has(find(problems(small + "[mesh]\ntp = 1\ntp = 2\n"), "small.toml:11"), "tp"));  // twice the same key
  EXPECT_EQ(problems(small + "[run]\n").size(), 1u);  // twice the same section
}

TEST(Deck, AllProblemsInOneReport) {
  try {
    Deck::parse("[run]\nstep = 3\n[model]\nlayers = \"x\"\n[mesh]\ntp = 0\n", "dir/bad.toml",
                {"optimizer.lr=-1", "zip"});
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), Exit::usage);
    for (const char* part : {"dir/bad.toml:2: unknown key run.step", "dir/bad.toml:4: model.layers",
                             "dir/bad.toml:6: mesh.tp", "override optimizer.lr=-1", "override zip",
                             "data.train is missing", "data.sequence is missing", "batch.global is missing"})
      EXPECT_TRUE(has(text, part)) << part << " in\n" << text;
  }
}

TEST(Deck, RequiredKeysMayBeNotNeeded) {
  Texts out;
  const Deck deck =
      Deck::parse("[run]\nsteps = 1\n[data]\nsequence = 4\n[batch]\nglobal = 1\n", "p.toml", {}, {"data.train"}, out);
  EXPECT_TRUE(out.empty());
  EXPECT_FALSE(deck.has(keys::data::train));
}

TEST(Deck, MissingFileIsWrongUsage) {
  EXPECT_THROW(Deck::read("does-not-exist.toml", {}), UsageError);
  EXPECT_THROW(Deck::read(".", {}), UsageError);
}

TEST(Deck, ResolvedDeckReadsBackTheSame) {
  Deck deck = read(
      small, {"model.family=llama", "model.layers=2", "optimizer.lr=1.2345678901234567e-3", "run.output=a \"b\" \\c",
              "checkpoint.mpi_info={cb_nodes=\"8\", x=\"a b\"}", "model.rope.type=linear", "model.rope.factor=4"});
  deck.set(keys::mesh::dp, int64_t{4});
  const std::string text = deck.resolved();
  const Deck again = Deck::parse(text, "elsewhere/deck.toml", {});
  for (std::size_t i = 0; i < all_keys().size(); ++i) {
    const auto& key = all_keys()[i];
    ASSERT_EQ(deck.has(i), again.has(i)) << key.name;
    if (deck.has(i)) {
      EXPECT_EQ(deck.value_at(i), again.value_at(i)) << key.name;
    }
  }
  EXPECT_EQ(again[keys::mesh::dp], 4);
  EXPECT_EQ(again.resolved().substr(again.resolved().find("[run]")), text.substr(text.find("[run]")));
  // features that are not in use stay comments
  EXPECT_TRUE(has(text, "# shared_experts = 0"));
  EXPECT_FALSE(again.given(keys::moe::shared_experts));
  EXPECT_TRUE(has(text, "[steps]"));  // units
}

TEST(Deck, NumbersRoundTrip) {
  for (const double x : {0.1, 1e-8, 3e-4, 1.0, 40e6, 1e22, 1.7976931348623157e308, 5e-324, 1.0 / 3})
    EXPECT_EQ(read(small, {"optimizer.lr=" + number_text(x)})[keys::optimizer::lr], x) << number_text(x);
  EXPECT_EQ(number_text(3e-4), "3e-4");
  EXPECT_EQ(number_text(1), "1.0");
}

TEST(Deck, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("steps", "stpes"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

}  // namespace
}  // namespace orthant
