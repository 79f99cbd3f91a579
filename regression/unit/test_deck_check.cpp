// Relations between deck, ranks and sizes: what is refused, with which numbers, and what passes.
// ranks: 1
// labels: smoke
// seconds: 30
#include <gtest/gtest.h>

#include "deck/all_keys.hpp"
#include "deck/check.hpp"
#include "orthant/error.hpp"

namespace orthant {
namespace {

using Texts = std::vector<std::string>;

// The two small models of the test suite: GPT-2-like with learned positions, Llama-like with grouped heads.
const std::string gpt2 = R"(
run.steps = 3
model = { family = "gpt2", layers = 4, hidden = 32, heads = 4, vocab = 65, context = 64 }
data = { train = "d", sequence = 16 }
batch.global = 8
)";
const std::string llama = R"(
run.steps = 3
model = { family = "llama", layers = 4, hidden = 32, heads = 4, kv_heads = 2, ffn = 64, vocab = 65 }
data = { train = "d", sequence = 16 }
batch.global = 8
)";
Deck deck(const std::string& text, const Texts& overrides = {}) { return Deck::parse(text, "small.toml", overrides); }
Texts with(Texts a, const Texts& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Texts sizes(const std::string& text, const Texts& overrides, int64_t ranks) {
  Texts out;
  const Deck d = deck(text, overrides);
  const ModelConfig model = model_config(d, out);
  const Texts more = check_sizes(d, model, ranks);
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

std::string all(const Texts& problems) {
  std::string text;
  for (const auto& p : problems) text += p + "\n";
  return text;
}

/// One problem holds every part.
::testing::AssertionResult says(const Texts& problems, const Texts& parts) {
  for (const auto& p : problems) {
    bool every = true;
    for (const auto& part : parts) every = every && p.find(part) != std::string::npos;
    if (every) return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "no problem holds all of these parts: " << all(parts) << "among:\n"
                                       << all(problems);
}

TEST(CheckMesh, LegalMeshesPass) {
  EXPECT_EQ(all(check_mesh(deck(llama), 1)), "");
  EXPECT_EQ(all(check_mesh(deck(llama), 8)), "");  // dp takes what is left
  EXPECT_EQ(all(check_mesh(deck(llama, {"mesh.tp=2", "mesh.cp=2", "mesh.pp=2", "mesh.dp=2"}), 16)), "");
  EXPECT_EQ(all(check_mesh(deck(llama, {"mesh.order=pp-dp-cp-tp"}), 1)), "");
  EXPECT_EQ(data_ranks(deck(llama, {"mesh.tp=2"}), 8), 4);
  EXPECT_EQ(data_ranks(deck(llama, {"mesh.tp=2"}), 3), 0);
  EXPECT_EQ(data_ranks(deck(llama, {"mesh.dp=3"}), 8), 3);
}

// case O107
TEST(CheckMesh, RanksThatDoNotMatch) {
  EXPECT_TRUE(says(check_mesh(deck(llama, {"mesh.tp=2", "mesh.pp=2"}), 3),
                   {"2 x 1 x 2", "= 4", "3 ranks were launched", "legal mesh"}));
  EXPECT_TRUE(says(check_mesh(deck(llama, {"mesh.tp=2", "mesh.pp=2", "mesh.cp=2", "mesh.dp=2"}), 8),
                   {"2 x 2 x 2 x 2 = 16", "8 ranks", "a legal mesh for 8 ranks: tp = 2, cp = 2, pp = 2, dp = 1",
                    "launch 16 ranks"}));
  EXPECT_TRUE(says(check_mesh(deck(llama, {"mesh.tp=2"}), 1),
                   {"2 x 1 x 1", "1 rank was launched", "tp = 1, cp = 1, pp = 1, dp = 1"}));
  EXPECT_TRUE(says(sizes(llama, {"mesh.ep=3", "mesh.dp=2"}, 2), {"mesh.ep = 3", "no experts", "1 x 2 = 2"}));
  // both violations in one list
  const auto many = check_mesh(deck(llama, {"mesh.tp=2", "mesh.order=tp-dp"}), 3);
  EXPECT_EQ(many.size(), 2u) << all(many);
  for (const char* bad : {"mesh.tp=0", "mesh.tp=-1", "mesh.pp=0", "mesh.dp=-2"}) {
    Texts unused;
    const Deck d = Deck::parse(llama, "small.toml", {bad}, {}, unused);
    EXPECT_EQ(unused.size(), 1u);
    EXPECT_TRUE(says(check_mesh(d, 2), {"at least 1", "2 ranks were launched", "a legal mesh for 2 ranks"})) << bad;
  }
}

TEST(CheckMesh, TheSuggestedMeshObeysEveryRule) {
  // 3 ranks: dp = 3 does not divide the batch of 8, tp = 3 not the 4 heads, but 3 stages can share 4 blocks
  EXPECT_TRUE(
      says(check_mesh(deck(llama, {"mesh.tp=2"}), 3), {"a legal mesh for 3 ranks: tp = 1, cp = 1, pp = 3, dp = 1"}));
  // 6 chunks cannot share 3 blocks, embedding and head; so fewer ranks are suggested
  const Texts chunks = {"model.layers=3", "pipeline.schedule=interleaved", "pipeline.virtual_stages=2"};
  EXPECT_TRUE(says(check_mesh(deck(llama, with(chunks, {"mesh.tp=2"})), 3),
                   {"no mesh of 3 ranks", "a legal mesh for 2 ranks: tp = 2, cp = 1, pp = 1, dp = 1"}));
  // 2 entries of stage_layers are for 2 stages, whatever the ranks
  EXPECT_TRUE(says(check_mesh(deck(llama, {"mesh.pp=2", "pipeline.stage_layers=[1,3]"}), 3),
                   {"no mesh of 3 ranks", "a legal mesh for 2 ranks: tp = 1, cp = 1, pp = 2, dp = 1"}));
  // nor is a mesh suggested that zero.shard does not fit
  EXPECT_TRUE(says(check_mesh(deck(llama, {"mesh.tp=2", "mesh.pp=3", "zero.stage=1", "zero.shard=4"}), 4),
                   {"a legal mesh for 4 ranks: tp = 1, cp = 1, pp = 1, dp = 4"}));
  // with a batch of 9 dp = 3 is legal
  EXPECT_TRUE(says(check_mesh(deck(llama, {"mesh.tp=2", "batch.global=9"}), 3),
                   {"a legal mesh for 3 ranks: tp = 1, cp = 1, pp = 1, dp = 3"}));
  EXPECT_TRUE(says(check_mesh(deck(llama, {"mesh.tp=3"}), 4), {"a legal mesh for 4 ranks: tp = 4"}));
}

TEST(CheckMesh, HugeFactorsDoNotWrapAround) {
  EXPECT_TRUE(says(check_mesh(deck(llama, {"mesh.tp=4294967296", "mesh.pp=4294967296", "mesh.dp=1"}), 1),
                   {"1 rank was launched"}));
}

TEST(CheckMesh, Order) {
  for (const char* order : {"tp-cp-pp", "tp-cp-pp-dp-ep", "tp-tp-pp-dp", "tp,cp,pp,dp", ""})
    EXPECT_TRUE(says(check_mesh(deck(llama, {std::string("mesh.order=") + order}), 1), {"mesh.order", "once each"}))
        << order;
}

TEST(CheckSizes, HeadsAndWidths) {
  EXPECT_EQ(all(sizes(llama, {"mesh.tp=2"}, 2)), "");
  EXPECT_EQ(all(sizes(llama, {"mesh.tp=4"}, 4)), "");  // 2 kv heads on 4 ranks: replicated
  EXPECT_TRUE(says(sizes(llama, {"mesh.tp=3"}, 3), {"model.heads = 4", "tp = 3"}));
  EXPECT_TRUE(says(sizes(llama, {"mesh.tp=4", "model.ffn=66"}, 4), {"model.ffn = 66", "tp = 4"}));
  EXPECT_TRUE(says(sizes(llama, {"mesh.tp=4", "model.heads=12", "model.kv_heads=6", "model.head_dim=8"}, 4),
                   {"model.kv_heads = 6", "tp = 4"}));
  EXPECT_TRUE(says(sizes(llama, {"mesh.tp=2", "mesh.cp=4", "context.method=all_to_all", "data.sequence=64"}, 8),
                   {"model.heads = 4", "2 x 4 = 8", "all_to_all"}));
  EXPECT_EQ(all(sizes(llama, {"mesh.tp=2", "mesh.cp=4", "data.sequence=64"}, 8)), "");  // ring does not cut heads
  // tp x cp = 6 is divisible by 3, tp = 2 is not
  EXPECT_TRUE(says(sizes(llama, {"mesh.tp=2", "mesh.cp=3", "context.method=all_to_all", "data.sequence=60",
                                 "model.heads=6", "model.kv_heads=3", "model.head_dim=8"},
                         6),
                   {"model.kv_heads = 3", "tp = 2"}));
}

// case O025
TEST(CheckSizes, Batch) {
  EXPECT_TRUE(says(sizes(llama, {"batch.global=10", "batch.micro=2", "mesh.dp=2"}, 2),
                   {"batch.global = 10", "2 x 2 = 4", "8 or 12", "batch.micro = 1"}));
  EXPECT_TRUE(says(sizes(llama, {"batch.global=3"}, 2),
                   {"batch.global = 3", "1 x 2 = 2", "2 or 4", "dp = 2"}));  // dp from the ranks
  EXPECT_TRUE(says(sizes(llama, {"batch.global=1"}, 2), {"nearest legal batch.global: 2"}));
  EXPECT_EQ(all(sizes(llama, {"batch.global=12", "batch.micro=3"}, 4)), "");
}

// case O027
TEST(CheckSizes, LearnedPositions) {
  EXPECT_EQ(all(sizes(gpt2, {"data.sequence=64"}, 1)), "");
  EXPECT_TRUE(says(sizes(gpt2, {"data.sequence=65"}, 1), {"data.sequence = 65", "model.context = 64"}));
  EXPECT_TRUE(says(sizes(gpt2, {"data.sequence=128"}, 1), {"data.sequence = 128", "model.context = 64"}));
  EXPECT_EQ(all(sizes(llama, {"data.sequence=128", "model.context=64"}, 1)), "");  // rotary: no table to overrun
}

// case O024
TEST(CheckSizes, Layers) {
  for (const auto& [layers, pp] : std::vector<std::pair<int, int>>{{5, 2}, {7, 4}, {10, 3}, {2, 4}})
    EXPECT_EQ(all(sizes(llama, {"model.layers=" + std::to_string(layers), "mesh.pp=" + std::to_string(pp)}, pp)), "");
  EXPECT_TRUE(says(sizes(llama, {"model.layers=1", "mesh.pp=4"}, 4), {"model.layers = 1", "4 x 1 = 4"}));
  EXPECT_TRUE(says(sizes(llama, {"mesh.pp=4", "pipeline.virtual_stages=2", "pipeline.schedule=interleaved"}, 4),
                   {"model.layers = 4", "4 x 2 = 8"}));
  EXPECT_EQ(all(sizes(llama, {"mesh.pp=2", "pipeline.stage_layers=[1,3]"}, 2)), "");
  EXPECT_TRUE(
      says(sizes(llama, {"mesh.pp=2", "pipeline.stage_layers=[2,3]"}, 2), {"adds up to 5", "model.layers = 4"}));
  EXPECT_TRUE(says(sizes(llama, {"mesh.pp=2", "pipeline.stage_layers=[4]"}, 2), {"1 entries", "2 x 1 = 2"}));

  // an entry for each chunk, not each stage; the embedding and the head may stand alone, a chunk between them not
  const Texts two = {"mesh.pp=2", "pipeline.virtual_stages=2", "pipeline.schedule=interleaved"};
  EXPECT_EQ(all(sizes(llama, with(two, {"pipeline.stage_layers=[0,2,2,0]"}), 2)), "");
  EXPECT_TRUE(says(sizes(llama, with(two, {"pipeline.stage_layers=[2,2]"}), 2), {"2 entries", "2 x 2 = 4 chunks"}));
  const Texts empty = sizes(llama, with(two, {"pipeline.stage_layers=[2,0,2,0]"}), 2);
  EXPECT_TRUE(says(empty, {"pipeline.stage_layers: entry 2 is 0"}));
  EXPECT_EQ(empty.size(), 1u) << all(empty);
  EXPECT_EQ(sizes(llama, with(two, {"pipeline.stage_layers=[4,0,0,0]"}), 2).size(), 2u);
  EXPECT_EQ(all(sizes(llama, {"pipeline.stage_layers=[4]"}, 1)), "");
}

TEST(CheckSizes, Shards) {
  EXPECT_EQ(all(sizes(llama, {"zero.stage=1", "zero.shard=2"}, 8)), "");
  EXPECT_EQ(all(sizes(llama, {"zero.stage=3", "zero.shard=8"}, 8)), "");
  EXPECT_EQ(all(sizes(llama, {"zero.stage=2", "zero.shard=4", "mesh.cp=2", "mesh.tp=2"}, 8)), "");  // over dp x cp
  EXPECT_TRUE(says(sizes(llama, {"zero.stage=1", "zero.shard=3"}, 8), {"zero.shard = 3", "dp x cp = 8 x 1 = 8"}));
  EXPECT_TRUE(says(sizes(llama, {"zero.stage=1", "zero.shard=4", "mesh.pp=4"}, 8), {"zero.shard = 4", "2 x 1 = 2"}));
  EXPECT_TRUE(says(sizes(llama, {"zero.shard=2"}, 8), {"zero.shard = 2", "zero.stage = 0"}));
  EXPECT_EQ(all(sizes(llama, {"zero.shard=2", "zero.stage=1"}, 0)), "");  // dp is not settled yet
}

TEST(CheckSizes, Sequence) {
  EXPECT_TRUE(
      says(sizes(llama, {"mesh.cp=2", "data.sequence=18"}, 2), {"data.sequence = 18", "2 x cp = 4", "16 or 20"}));
  // case O055
  EXPECT_TRUE(
      says(sizes(llama, {"mesh.cp=4", "data.sequence=23"}, 4), {"data.sequence = 23", "2 x cp = 8", "16 or 24"}));
  EXPECT_TRUE(
      says(sizes(llama, {"mesh.cp=4", "data.sequence=20"}, 4), {"data.sequence = 20", "2 x cp = 8", "16 or 24"}));
  EXPECT_TRUE(
      says(sizes(llama, {"mesh.cp=8", "data.sequence=8"}, 8), {"data.sequence = 8", "2 x cp = 16", "nearest: 16"}));
  EXPECT_EQ(all(sizes(llama, {"mesh.cp=4", "data.sequence=24"}, 4)), "");
  EXPECT_TRUE(says(sizes(llama, {"mesh.tp=4", "mesh.sequence_parallel=true", "data.sequence=18"}, 4),
                   {"18 / 1 = 18", "tp = 4"}));
  EXPECT_TRUE(says(sizes(llama, {"mesh.tp=4", "mesh.cp=2", "mesh.sequence_parallel=true", "data.sequence=12"}, 8),
                   {"12 / 2 = 6", "tp = 4"}));
  EXPECT_EQ(all(sizes(llama, {"mesh.tp=4", "data.sequence=18"}, 4)), "");
}

TEST(CheckSizes, ReproducibleModeRefusesCutsInsideABlock) {
  const Texts on = {"run.reproducible=true"};
  EXPECT_EQ(all(sizes(llama, with(on, {"mesh.tp=4", "mesh.sequence_parallel=true"}), 4)), "");
  EXPECT_EQ(all(sizes(llama, with(on, {"mesh.tp=2", "mesh.cp=2"}), 4)), "");
  // ceil(44 / 8) = 6 columns a block, 22 a rank
  EXPECT_TRUE(says(sizes(llama, with(on, {"mesh.tp=2", "model.ffn=44"}), 2), {"22 of model.ffn = 44", "= 6"}));
  EXPECT_EQ(all(sizes(llama, {"mesh.tp=2", "model.ffn=44"}, 2)), "");
  EXPECT_EQ(all(sizes(llama, with(on, {"model.ffn=57"}), 2)), "");  // tp 1 cuts nothing
  // ceil(20 / 16) = 2 tokens a block, pieces of 5
  EXPECT_TRUE(says(sizes(llama, with(on, {"mesh.cp=2", "data.sequence=20"}), 2), {"cp = 2", "pieces of 5", "= 2"}));
  EXPECT_TRUE(says(sizes(llama, with(on, {"mesh.tp=4", "mesh.sequence_parallel=true", "data.sequence=20"}), 4),
                   {"sequence_parallel", "pieces of 5"}));
  EXPECT_TRUE(says(
      sizes(llama, with(on, {"mesh.tp=32", "model.heads=32", "model.kv_heads=32", "model.hidden=64", "model.ffn=64"}),
            32),
      {"vocabulary", "tp = 32"}));
}

TEST(ModelConfigOfDeck, Defaults) {
  Texts problems;
  const ModelConfig g = model_config(deck(gpt2), problems);
  EXPECT_EQ(g.ffn, 128);
  EXPECT_EQ(g.kv_heads, 4);
  EXPECT_EQ(g.head_dim, 8);
  EXPECT_EQ(g.context, 64);
  EXPECT_TRUE(g.tie_embeddings && g.bias);
  const ModelConfig l = model_config(deck(llama), problems);
  EXPECT_EQ(l.kv_heads, 2);
  EXPECT_EQ(l.context, 16);
  EXPECT_FALSE(l.tie_embeddings || l.bias || l.qkv_bias);
  const ModelConfig q =
      model_config(deck(llama, {"model.family=qwen3", "model.head_dim=32", "model.tie_embeddings=true"}), problems);
  EXPECT_EQ(q.head_dim, 32);  // head_dim x heads need not be hidden
  EXPECT_TRUE(q.tie_embeddings);
  EXPECT_EQ(all(problems), "");
}

TEST(ModelConfigOfDeck, Problems) {
  const auto of = [](const std::string& text, const Texts& overrides) {
    Texts out;
    model_config(deck(text, overrides), out);
    return out;
  };
  const auto bare =
      of("run.steps = 1\ndata = { train = \"d\", sequence = 16 }\nbatch.global = 1\nmodel.family = \"llama\"\n", {});
  for (const char* key : {"model.layers", "model.hidden", "model.heads", "model.vocab", "model.ffn"})
    EXPECT_TRUE(says(bare, {std::string(key) + " is missing"}));
  EXPECT_TRUE(says(of("run.steps = 1\ndata = { train = \"d\", sequence = 16 }\nbatch.global = 1\n", {}),
                   {"model.context is missing"}));
  EXPECT_TRUE(says(of(llama, {"model.hidden=34"}), {"model.hidden = 34", "model.heads = 4"}));
  EXPECT_TRUE(says(of(llama, {"model.kv_heads=3"}), {"model.kv_heads = 3", "model.heads = 4"}));
  EXPECT_TRUE(says(of(llama, {"model.head_dim=7"}), {"model.head_dim = 7", "even"}));
  EXPECT_TRUE(says(of(gpt2, {"model.kv_heads=2"}), {"model.kv_heads = 2", "gpt2"}));
  EXPECT_TRUE(says(of(gpt2, {"model.head_dim=16"}), {"model.head_dim = 16", "model.hidden = 32"}));
}

TEST(ModelConfigOfDeck, RopeKeysOfEachType) {
  const auto of = [](const Texts& overrides, const std::string& text = llama) {
    Texts out;
    model_config(deck(text, overrides), out);
    return out;
  };
  EXPECT_TRUE(says(of({"model.rope.type=linear"}), {"model.rope.factor is missing", "linear"}));
  EXPECT_EQ(of({"model.rope.type=llama3"}).size(), 4u);
  EXPECT_EQ(of({"model.rope.type=yarn"}).size(), 2u);
  EXPECT_TRUE(says(of({"model.rope.factor=2"}), {"model.rope.factor = 2", "no effect", "default"}));
  EXPECT_TRUE(says(of({"model.rope.type=linear", "model.rope.factor=2", "model.rope.mscale=1"}),
                   {"model.rope.mscale", "no effect"}));
  EXPECT_TRUE(says(of({"model.rope.type=linear", "model.rope.factor=2"}, gpt2), {"learned positions"}));
  const Texts good = {"model.rope.type=llama3", "model.rope.factor=8", "model.rope.low_freq_factor=1",
                      "model.rope.high_freq_factor=4", "model.rope.original_context=8192"};
  EXPECT_EQ(all(of(good)), "");
  EXPECT_TRUE(says(of(with(good, {"model.rope.low_freq_factor=4"})), {"low_freq_factor", "below"}));
  Texts problems;
  const ModelConfig m = model_config(deck(llama, good), problems);
  EXPECT_EQ(m.rope.type, "llama3");
  EXPECT_EQ(m.rope.factor, 8);
  EXPECT_EQ(m.rope.original_context, 8192);
}

TEST(MergeLoaded, SizesMustAgreeAndSwitchesApply) {
  const std::string text =
      "run.steps = 1\nmodel.load = \"hf\"\ndata = { train = \"d\", sequence = 16 }\nbatch.global = 1\n";
  ModelConfig file;
  file.family = "llama";
  file.layers = 4, file.hidden = 32, file.ffn = 64, file.heads = 4, file.kv_heads = 2, file.head_dim = 8,
  file.vocab = 65;
  file.context = 128;
  file.norm_eps = 1e-6;
  file.rope_theta = 500000;
  file.rope = {.type = "linear", .factor = 2};
  Texts problems;
  ModelConfig m = merge_loaded(
      deck(text, {"model.family=llama", "model.layers=4", "model.z_loss=0.1", "model.init_std=0.5"}), file, problems);
  EXPECT_EQ(all(problems), "");
  EXPECT_EQ(m.norm_eps, 1e-6);  // not given: the file's
  EXPECT_EQ(m.rope_theta, 500000);
  EXPECT_EQ(m.rope.type, "linear");
  EXPECT_EQ(m.context, 128);
  EXPECT_EQ(m.z_loss, 0.1);
  EXPECT_EQ(m.init_std, 0.5);
  m = merge_loaded(
      deck(text, {"model.rope_theta=1e6", "model.context=256", "model.rope.type=linear", "model.rope.factor=4"}),
      file, problems);
  EXPECT_EQ(all(problems), "");
  EXPECT_EQ(m.rope_theta, 1e6);
  EXPECT_EQ(m.context, 256);
  EXPECT_EQ(m.rope.factor, 4);
  merge_loaded(deck(text, {"model.family=gpt2", "model.hidden=64", "model.kv_heads=4", "model.tie_embeddings=true"}),
               file, problems);
  EXPECT_EQ(problems.size(), 4u) << all(problems);
  EXPECT_TRUE(says(problems, {"model.hidden = 64", "config.json says 32", "hf"}));
  EXPECT_TRUE(says(problems, {"model.family = \"gpt2\"", "\"llama\""}));

  // what was settled can be written out and read again
  Deck settled = deck(text);
  set_model_keys(settled, m);
  const Deck again = Deck::parse(settled.resolved(), "deck.toml", {});
  problems.clear();
  const ModelConfig reread = merge_loaded(again, file, problems);
  EXPECT_EQ(all(problems), "");
  EXPECT_EQ(reread.rope.factor, 4);
  EXPECT_EQ(reread.rope_theta, 1e6);
}

TEST(CheckValues, RelationsInsideTheDeck) {
  const auto of = [](const Texts& overrides) { return check_values(deck(llama, overrides)); };
  EXPECT_EQ(all(of({})), "");
  for (const char* split : {"969,30,1", "1", "0.9,0.1", "90, 10, 0"})
    EXPECT_EQ(all(of({std::string("data.split=") + split})), "") << split;
  for (const char* split : {"", "a", "1,2,3,4", "1,,2", "-1,2", "0,0,0", "1;2", "nan", "1,2,"})
    EXPECT_TRUE(says(of({std::string("data.split=") + split}), {"data.split"})) << split;
  EXPECT_TRUE(says(of({"data.weights=[1,2]"}), {"2 values", "1 prefixes"}));
  EXPECT_TRUE(says(of({"data.weights=[0]"}), {"above 0"}));
  EXPECT_TRUE(says(of({"data.train=[]"}), {"at least one"}));
  EXPECT_TRUE(says(of({"data.mask=[a,b]"}), {"data.mask has 2"}));
  EXPECT_TRUE(
      says(of({"optimizer.schedule=cosine", "optimizer.min_lr=1"}), {"optimizer.min_lr = 1", "optimizer.lr"}));
  EXPECT_TRUE(says(of({"pipeline.virtual_stages=2"}), {"pipeline.virtual_stages = 2", "interleaved"}));
  EXPECT_TRUE(says(of({"pipeline.virtual_stages=3", "pipeline.schedule=zero_bubble"}), {"V form"}));
  for (const std::string key : {"data.document_mask", "data.reset_positions"}) {
    EXPECT_TRUE(says(of({key + "=true"}), {key + " = true", "data.eod", "data.tokenizer"}));
    EXPECT_EQ(all(of({key + "=true", "data.eod=0"})) + all(of({key + "=true", "data.tokenizer=bytes"})), "") << key;
  }
  EXPECT_EQ(of({"data.document_mask=true", "data.reset_positions=true"}).size(), 2u);
}

TEST(CheckValues, DropoutIsAShareBelowOne) {
  for (const char* good : {"model.dropout=0", "model.dropout=0.999"}) {
    Texts problems;
    Deck::parse(llama, "small.toml", {good}, {}, problems);
    EXPECT_EQ(all(problems), "") << good;
  }
  for (const char* bad : {"model.dropout=1", "model.dropout=-0.1", "model.dropout=nan"}) {
    Texts problems;
    Deck::parse(llama, "small.toml", {bad}, {}, problems);
    EXPECT_TRUE(says(problems, {"model.dropout = ", "0 <= x < 1"})) << bad;
  }
}

TEST(NotBuilt, NamesFeatureKeyAndValue) {
  EXPECT_EQ(all(not_built(deck(llama))), "");
  EXPECT_EQ(all(not_built(deck(gpt2))), "");
  // what stages of a pipeline and cut states need
  for (const Texts& built :
       std::vector<Texts>{{"mesh.pp=2"},
                          {"mesh.pp=2", "pipeline.schedule=gpipe", "pipeline.stage_layers=[1,3]"},
                          {"mesh.pp=2", "pipeline.schedule=interleaved", "pipeline.virtual_stages=2"},
                          {"mesh.pp=2", "pipeline.schedule=zero_bubble", "pipeline.virtual_stages=2"},
                          {"mesh.pp=2", "pipeline.schedule=order.csv", "pipeline.virtual_stages=3"},
                          {"run.timing=sleep", "run.sleep_ms=1", "run.sleep_gbps=2"},
                          {"comm.overlap=false"},
                          {"mesh.cp=2"},
                          {"mesh.cp=2", "context.method=all_gather"},
                          {"mesh.cp=2", "context.method=all_to_all"},
                          {"data.document_mask=true", "data.reset_positions=true", "data.eod=0"},
                          {"model.dropout=0.1"},
                          {"model.z_loss=1e-4"},
                          {"mesh.ep=2", "mesh.etp=2"},
                          {"layout.vocab=", "layout.heads=", "layout.ffn="},
                          {"zero.stage=1"},
                          {"zero.stage=2", "zero.accumulate=full", "zero.bucket=1"},
                          {"zero.stage=3", "zero.shard=2"}})
    EXPECT_EQ(all(not_built(deck(llama, built))) + all(check_values(deck(llama, built))), "") << all(built);
  EXPECT_EQ(all(not_built(deck(llama, {"checkpoint.async=true", "device.backend=debug"}))), "");
  for (const std::string asked : {"optimizer.name=muon", "model.mup=true"}) {
    const auto key = asked.substr(0, asked.find('='));
    EXPECT_TRUE(says(not_built(deck(llama, {asked})), {key + " = ", "not in this build"})) << asked;
  }
  EXPECT_TRUE(
      says(not_built(deck(llama, {"device.backend=cuda"})), {"device.backend = \"cuda\"", "CUDA device support"}));
}

TEST(CheckedDeck, OneReportForEverything) {
  try {
    checked_deck(
        llama, "small.toml",
        {"mesh.tp=3", "mesh.ep=2", "model.hiden=3", "model.kv_heads=x", "data.split=x", "device.backend=cuda"}, 4);
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    const std::string text = error.what();
    for (const char* part :
         {"model.hiden", "model.kv_heads = \"x\"", "data.split", "device.backend", "mesh: tp x cp x pp x dp = 3",
          "mesh.ep = 2", "model.heads = 4 is not divisible by tp = 3"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_EQ(checked_deck(llama, "small.toml", {"mesh.tp=2"}, 8)[keys::mesh::dp], 4);
}

TEST(CheckedDeck, AMisspeltKeyIsNotAlsoCalledMissing) {
  try {
    checked_deck(gpt2, "small.toml", {"model.heads=four"}, 1);
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("1 problem\n"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace orthant
