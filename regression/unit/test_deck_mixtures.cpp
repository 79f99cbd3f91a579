// Decks of the families mixtral and deepseek: their model, the way back into a deck, and what a mesh may do with
// them.
// ranks: 1
// labels: smoke
// seconds: 30
#include <gtest/gtest.h>

#include "checkpoint/hf_config.hpp"
#include "deck/all_keys.hpp"
#include "deck/check.hpp"
#include "orthant/error.hpp"

namespace orthant {
namespace {

using Texts = std::vector<std::string>;

const std::string mixtral = R"(
run.steps = 3
data = { train = "d", sequence = 16 }
batch.global = 8
mesh.sequence_parallel = true
[model]
family = "mixtral"
layers = 4
hidden = 32
heads = 4
kv_heads = 2
vocab = 65
moe = { experts = 4, top_k = 2, ffn = 48 }
)";
const std::string deepseek = R"(
run.steps = 3
data = { train = "d", sequence = 16 }
batch.global = 8
mesh.sequence_parallel = true
[model]
family = "deepseek"
layers = 4
hidden = 32
ffn = 64
heads = 4
vocab = 65
moe = { experts = 8, top_k = 2, ffn = 24, shared_experts = 2, first_dense_layers = 1, groups = 4, top_groups = 2, scale = 2.5 }
mla = { q_lora_rank = 12, kv_lora_rank = 16, nope_dim = 8, rope_dim = 4, v_dim = 6 }
)";
const std::string llama = R"(
run.steps = 3
model = { family = "llama", layers = 4, hidden = 32, heads = 4, ffn = 64, vocab = 65 }
data = { train = "d", sequence = 16 }
batch.global = 8
)";

Deck deck(const std::string& text, const Texts& overrides = {}) { return Deck::parse(text, "small.toml", overrides); }

/// The deck without one of its keys.
std::string without(std::string text, const std::string& pair) {
  const auto at = text.find(pair);
  EXPECT_NE(at, std::string::npos) << pair;
  return text.erase(at, pair.size());
}

std::string joined(const Texts& problems) {
  std::string text;
  for (const auto& p : problems) text += p + "\n";
  return text;
}

ModelConfig model(const std::string& text, const Texts& overrides = {}) {
  Texts problems;
  ModelConfig m = model_config(deck(text, overrides), problems);
  EXPECT_EQ(joined(problems), "");
  return m;
}

Texts model_problems(const std::string& text, const Texts& overrides) {
  Texts problems;
  model_config(deck(text, overrides), problems);
  return problems;
}

Texts sizes(const std::string& text, const Texts& overrides, int64_t ranks) {
  Texts out;
  const Deck d = deck(text, overrides);
  const ModelConfig m = model_config(d, out);
  for (const auto& problem : check_sizes(d, m, ranks)) out.push_back(problem);
  return out;
}

/// Exactly one problem, and it holds every part.
void only(const Texts& problems, const Texts& parts) {
  ASSERT_EQ(problems.size(), 1u) << joined(problems);
  for (const auto& part : parts)
    EXPECT_NE(problems[0].find(part), std::string::npos) << part << " in: " << problems[0];
}

void expect_same(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.family, b.family);
  EXPECT_EQ(a.ffn, b.ffn);
  EXPECT_EQ(a.kv_heads, b.kv_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.moe.experts, b.moe.experts);
  EXPECT_EQ(a.moe.top_k, b.moe.top_k);
  EXPECT_EQ(a.moe.ffn, b.moe.ffn);
  EXPECT_EQ(a.moe.shared_experts, b.moe.shared_experts);
  EXPECT_EQ(a.moe.first_dense_layers, b.moe.first_dense_layers);
  EXPECT_EQ(a.moe.sigmoid, b.moe.sigmoid);
  EXPECT_EQ(a.moe.groups, b.moe.groups);
  EXPECT_EQ(a.moe.top_groups, b.moe.top_groups);
  EXPECT_EQ(a.moe.norm_topk, b.moe.norm_topk);
  EXPECT_EQ(a.moe.scale, b.moe.scale);
  EXPECT_EQ(a.moe.aux_loss, b.moe.aux_loss);
  EXPECT_EQ(a.moe.z_loss, b.moe.z_loss);
  EXPECT_EQ(a.moe.bias_rate, b.moe.bias_rate);
  EXPECT_EQ(a.moe.capacity_factor, b.moe.capacity_factor);
  EXPECT_EQ(a.mla.q_lora_rank, b.mla.q_lora_rank);
  EXPECT_EQ(a.mla.kv_lora_rank, b.mla.kv_lora_rank);
  EXPECT_EQ(a.mla.nope_dim, b.mla.nope_dim);
  EXPECT_EQ(a.mla.rope_dim, b.mla.rope_dim);
  EXPECT_EQ(a.mla.v_dim, b.mla.v_dim);
  EXPECT_EQ(a.mla.rope_interleave, b.mla.rope_interleave);
}

const Texts unusual = {"model.moe.router=softmax",       "model.moe.norm_topk=false",
                       "model.moe.aux_loss=0.01",        "model.moe.z_loss=1e-3",
                       "model.moe.capacity_factor=1.25", "model.mla.rope_interleave=false"};

TEST(MixtureOfDeck, Mixtral) {
  const ModelConfig m = model(mixtral);
  EXPECT_EQ(m.moe.experts, 4);
  EXPECT_EQ(m.moe.top_k, 2);
  EXPECT_EQ(m.moe.ffn, 48);
  EXPECT_EQ(m.ffn, 48);  // no layer is dense
  EXPECT_FALSE(m.moe.sigmoid || m.selection_bias());
  EXPECT_EQ(m.mixture_layers(), 4);
  EXPECT_EQ(m.mla.kv_lora_rank, 0);
  EXPECT_EQ(m.head_dim, 8);
  EXPECT_EQ(model(mixtral, {"model.ffn=100"}).ffn, 100);
  const ModelConfig by_ffn = model(without(mixtral, ", ffn = 48"), {"model.ffn=40"});
  EXPECT_EQ(by_ffn.moe.ffn, 40);
  EXPECT_EQ(by_ffn.ffn, 40);
  EXPECT_TRUE(model(mixtral, {"model.moe.router=sigmoid", "model.tie_embeddings=true"}).moe.sigmoid);
  EXPECT_EQ(model(mixtral, {"model.moe.groups=2", "model.dropout=0.1"}).moe.groups, 2);  // under softmax too
}

TEST(MixtureOfDeck, Deepseek) {
  const ModelConfig m = model(deepseek, {"model.moe.bias_rate=0.001"});
  EXPECT_TRUE(m.moe.sigmoid && m.moe.norm_topk && m.mla.rope_interleave && m.selection_bias());
  EXPECT_EQ(m.head_dim, 4);  // the rotary width
  EXPECT_EQ(m.kv_heads, 4);
  EXPECT_EQ(m.mla.qk_dim(), 12);
  EXPECT_EQ(m.mla.v_dim, 6);
  EXPECT_EQ(m.moe.scale, 2.5);
  EXPECT_EQ(m.moe.bias_rate, 0.001);
  EXPECT_FALSE(m.mixture(0));
  EXPECT_TRUE(m.mixture(1));
  EXPECT_EQ(model(deepseek, {"model.moe.first_dense_layers=4"}).mixture_layers(), 0);
  EXPECT_EQ(model(without(deepseek, "q_lora_rank = 12, ")).mla.q_lora_rank, 0);
  EXPECT_EQ(model(without(deepseek, "\nffn = 64"), {"model.moe.first_dense_layers=0"}).ffn, 24);
}

TEST(MixtureOfDeck, WhatIsMissing) {
  for (const char* pair : {"experts = 4", "top_k = 2", "ffn = 48"}) {
    const std::string key = "model.moe." + std::string(pair).substr(0, std::string(pair).find(' '));
    std::string text = mixtral;
    text.replace(text.find(pair), std::string(pair).size(), "scale = 1.0");
    only(model_problems(text, {}), {key + " is missing"});
  }
  only(model_problems(without(deepseek, "\nffn = 64"), {}), {"model.ffn is missing"});
  for (const char* pair : {"kv_lora_rank = 16, ", "nope_dim = 8, ", "rope_dim = 4, ", ", v_dim = 6"}) {
    const std::string bare = pair[0] == ',' ? pair + 2 : pair;
    only(model_problems(without(deepseek, pair), {}),
         {"model.mla." + bare.substr(0, bare.find(' ')) + " is missing"});
  }
}

TEST(MixtureOfDeck, Problems) {
  only(model_problems(mixtral, {"model.moe.top_k=5"}), {"model.moe.top_k = 5", "model.moe.experts = 4"});
  only(model_problems(mixtral, {"model.moe.groups=3"}), {"model.moe.groups = 3", "model.moe.experts = 4"});
  only(model_problems(mixtral, {"model.moe.groups=2", "model.moe.top_groups=3"}), {"top_groups = 3", "groups = 2"});
  only(model_problems(mixtral, {"model.moe.groups=4", "model.moe.top_groups=1"}),
       {"top_k = 2", "4 / 4 = 1", "1 experts"});
  only(model_problems(mixtral, {"model.moe.bias_rate=0.001"}), {"model.moe.bias_rate", "mixtral", "deepseek"});
  only(model_problems(mixtral, {"model.moe.shared_experts=1"}), {"model.moe.shared_experts = 1", "deepseek"});
  only(model_problems(mixtral, {"model.moe.first_dense_layers=1"}), {"model.moe.first_dense_layers = 1", "deepseek"});
  only(model_problems(mixtral, {"model.mla.v_dim=8"}), {"model.mla.v_dim = 8", "mixtral", "deepseek"});
  only(model_problems(mixtral, {"model.bias=true"}), {"model.bias = true", "mixtral"});
  only(model_problems(deepseek, {"model.qkv_bias=true"}), {"model.qkv_bias = true", "deepseek"});
  only(model_problems(deepseek, {"model.kv_heads=2"}), {"model.kv_heads = 2", "latent attention", "4"});
  only(model_problems(deepseek, {"model.head_dim=8"}), {"model.head_dim = 8", "model.mla.rope_dim = 4"});
  only(model_problems(deepseek, {"model.mla.rope_dim=5"}), {"model.mla.rope_dim = 5", "even"});
  only(model_problems(deepseek, {"model.moe.first_dense_layers=5"}), {"first_dense_layers = 5", "model.layers = 4"});
  for (const std::string family : {"gpt2", "llama", "qwen3"}) {
    const Texts overrides = {"model.family=" + family, "model.context=16", "model.head_dim=8"};
    for (const std::string key : {"model.moe.experts=4", "model.moe.groups=2", "model.moe.aux_loss=0.1",
                                  "model.mla.v_dim=8", "model.mla.rope_interleave=false"}) {
      Texts all = overrides;
      all.push_back(key);
      only(model_problems(llama, all), {key.substr(0, key.find('=')), family, "deepseek"});
    }
  }
  EXPECT_EQ(joined(model_problems(llama, {"model.moe.groups=1", "model.mla.rope_interleave=true"})), "");  // defaults
}

TEST(MixtureOfDeck, ValuesOutOfRangeDoNotDivideByZero) {
  Texts problems;
  const Deck d = Deck::parse(mixtral, "small.toml",
                             {"model.moe.groups=0", "model.moe.top_groups=-1", "model.moe.experts=0", "mesh.ep=0"},
                             {}, problems);
  EXPECT_EQ(problems.size(), 4u);
  const ModelConfig m = model_config(d, problems);
  EXPECT_NE(joined(check_sizes(d, m, 2)).find("both are at least 1"), std::string::npos);
}

TEST(MixtureOfDeck, AResolvedDeckGivesTheSameModel) {
  for (const std::string& text : {mixtral, deepseek}) {
    Texts extra = unusual;
    if (text == mixtral) extra.pop_back();
    for (const Texts& overrides : {Texts{}, extra}) {
      Deck d = deck(text, overrides);
      const ModelConfig m = model(text, overrides);
      set_model_keys(d, m);
      const Deck again = Deck::parse(d.resolved(), "deck.toml", {});
      Texts problems;
      expect_same(model_config(again, problems), m);
      EXPECT_EQ(joined(problems), "");
    }
  }
}

TEST(MixtureOfDeck, ALoadedModelKeepsItsSizes) {
  const std::string load =
      "run.steps = 1\nmodel.load = \"hf\"\ndata = { train = \"d\", sequence = 16 }\nbatch.global = 1\n";
  for (const std::string& text : {mixtral, deepseek}) {
    ModelConfig file = model(text);
    file.moe.aux_loss = 0.02;
    Texts problems;
    const Texts switches = {"model.moe.z_loss=1e-3", "model.moe.capacity_factor=2"};
    Deck d = deck(load, switches);
    const ModelConfig m = merge_loaded(d, file, problems);
    EXPECT_EQ(m.moe.aux_loss, 0.02);
    EXPECT_EQ(m.moe.z_loss, 1e-3);
    EXPECT_EQ(m.moe.capacity_factor, 2);
    ASSERT_EQ(notes_on_loaded(d, m).size(), 1u);
    EXPECT_NE(notes_on_loaded(d, m)[0].find("router_aux_loss_coef"), std::string::npos);
    set_model_keys(d, m);
    const std::string resolved = d.resolved();
    EXPECT_NE(resolved.find("\nexperts = "), std::string::npos) << resolved;  // written out, not a comment
    expect_same(merge_loaded(Deck::parse(resolved, "deck.toml", {}), file, problems), m);
    EXPECT_EQ(joined(problems), "");

    const Deck own = deck(load, {"model.moe.aux_loss=0.5"});
    EXPECT_EQ(merge_loaded(own, file, problems).moe.aux_loss, 0.5);  // the deck wins
    EXPECT_TRUE(notes_on_loaded(own, merge_loaded(own, file, problems)).empty());
    merge_loaded(deck(load, {"model.moe.experts=16"}), file, problems);
    only(problems, {"model.moe.experts = 16", "config.json says " + std::to_string(file.moe.experts)});
    problems.clear();
    merge_loaded(deck(load, {"model.moe.router=" + std::string(file.moe.sigmoid ? "softmax" : "sigmoid")}), file,
                 problems);
    only(problems, {"model.moe.router", "config.json says"});
  }
  ModelConfig plain = model(llama);
  Texts problems;
  merge_loaded(deck(load, {"model.moe.experts=4"}), plain, problems);
  only(problems, {"model.moe.experts = 4", "llama has no experts"});
}

// case O026
TEST(MixtureMesh, Experts) {
  only(sizes(mixtral, {"mesh.ep=3", "mesh.dp=3", "batch.global=9"}, 3), {"mesh.ep = 3", "model.moe.experts = 4"});
  only(sizes(mixtral, {"mesh.ep=8", "model.moe.experts=8"}, 4), {"mesh.ep = 8", "cp x dp = 1 x 4 = 4"});
  only(sizes(mixtral, {"mesh.ep=2", "mesh.tp=2", "mesh.pp=2", "mesh.etp=2"}, 4),
       {"mesh.ep = 2", "etp = 2", "cp x dp = 1 x 1 = 1", "etp x ep x edp"});
  // with etp = 1 the experts may also lie across tp
  EXPECT_EQ(joined(sizes(mixtral, {"mesh.ep=2", "mesh.tp=2", "mesh.pp=2"}, 4)), "");
  EXPECT_EQ(joined(sizes(mixtral, {"mesh.ep=4", "mesh.tp=2", "mesh.cp=2"}, 4)), "");
  EXPECT_EQ(joined(sizes(mixtral, {"mesh.ep=2", "mesh.tp=2", "mesh.etp=2"}, 4)), "");
  only(sizes(mixtral, {"mesh.ep=4", "model.moe.experts=6"}, 4), {"mesh.ep = 4", "model.moe.experts = 6"});
  only(sizes(mixtral, {"mesh.tp=4", "mesh.etp=2"}, 4), {"mesh.etp = 2", "mesh.tp = 4"});
  only(sizes(mixtral, {"mesh.tp=4", "mesh.etp=4", "model.moe.ffn=30"}, 4), {"mesh.etp = 4", "model.moe.ffn = 30"});
  EXPECT_EQ(joined(sizes(mixtral, {"mesh.tp=4", "model.moe.ffn=30"}, 4)), "");  // etp 1 does not cut it
  only(sizes(mixtral, {"mesh.tp=2", "mesh.sequence_parallel=false"}, 2), {"needs mesh.sequence_parallel"});
  EXPECT_EQ(joined(sizes(mixtral, {"mesh.sequence_parallel=false", "mesh.ep=2"}, 2)), "");
  EXPECT_EQ(joined(sizes(mixtral, {"mesh.ep=4"}, 0)), "");  // dp is not settled yet
  only(sizes(llama, {"mesh.etp=2", "mesh.tp=2"}, 2), {"mesh.etp = 2", "no experts"});
}

TEST(MixtureMesh, WidthsOfDeepseek) {
  EXPECT_EQ(joined(sizes(deepseek, {"mesh.tp=4", "mesh.ep=2"}, 4)), "");
  only(sizes(deepseek, {"mesh.tp=4", "model.ffn=66"}, 4), {"model.ffn = 66", "tp = 4"});
  only(sizes(deepseek, {"mesh.tp=4", "model.moe.ffn=21"}, 4), {"shared", "= 42", "tp = 4"});
  EXPECT_EQ(joined(sizes(deepseek, {"mesh.tp=4", "model.moe.ffn=21", "model.ffn=66", "layout.ffn="}, 4)), "");
  // no dense layer, so the dense width is not cut
  EXPECT_EQ(joined(sizes(deepseek, {"mesh.tp=4", "model.ffn=66", "model.moe.first_dense_layers=0"}, 4)), "");
  only(sizes(deepseek, {"mesh.tp=2", "mesh.cp=4", "context.method=all_to_all", "data.sequence=64"}, 8),
       {"model.heads = 4", "2 x 4 = 8", "all_to_all"});
  EXPECT_EQ(joined(sizes(deepseek, {"mesh.tp=8", "layout.heads=", "layout.ffn="}, 8)), "");
}

TEST(MixtureMesh, ReproducibleModeRefusesCutsInsideABlock) {
  const std::string on = "run.reproducible=true";
  EXPECT_EQ(joined(sizes(deepseek, {on, "mesh.tp=2", "mesh.etp=2"}, 2)), "");
  // ceil(28 / 8) = 4 columns a block, 14 a rank
  only(sizes(mixtral, {on, "mesh.tp=2", "mesh.etp=2", "model.moe.ffn=28"}, 2),
       {"etp = 2", "14 of model.moe.ffn = 28", "= 4"});
  EXPECT_EQ(joined(sizes(mixtral, {on, "mesh.tp=2", "model.moe.ffn=28"}, 2)), "");
  only(sizes(deepseek, {on, "mesh.tp=2", "model.moe.ffn=22"}, 2),
       {"tp = 2", "22 of the shared width", "= 44", "= 6"});
}

TEST(MixtureMesh, SuggestionsObeyTheRulesOnExperts) {
  const auto mesh = [](const std::string& text, const Texts& overrides, int64_t ranks) {
    return joined(check_mesh(deck(text, overrides), ranks));
  };
  // ep = 4 must divide tp x cp x dp, so pp stays 1
  EXPECT_NE(mesh(mixtral, {"mesh.ep=4", "mesh.pp=2", "mesh.dp=4"}, 4)
                .find("a legal mesh for 4 ranks: tp = 1, cp = 1, pp = 1, dp = 4"),
            std::string::npos);
  // with model.load the experts are not known yet, the other rules are
  const std::string load =
      "run.steps = 1\nmodel.load = \"hf\"\ndata = { train = \"d\", sequence = 16 }\nbatch.global = 8\n";
  EXPECT_NE(mesh(load, {"mesh.ep=4", "mesh.pp=2", "mesh.dp=4"}, 4).find("tp = 1, cp = 1, pp = 1, dp = 4"),
            std::string::npos);
}

TEST(Layout, RefusalsSayWhy) {
  const auto problem = [](const std::string& override_text) {
    Texts problems;
    Deck::parse(llama, "small.toml", {override_text}, {}, problems);
    EXPECT_EQ(problems.size(), 1u) << override_text << "\n" << joined(problems);
    return joined(problems);
  };
  struct Refused {
    const char* text;
    Texts parts;
  };
  const Refused all[] = {
      {"layout.experts=tp", {"layout.experts = \"tp\"", "etp", "two dims", "\"ep\""}},
      {"layout.batch=cp", {"layout.batch = \"cp\"", "sequence", "two dims", "\"dp\""}},
      {"layout.sequence=dp", {"layout.sequence = \"dp\"", "batch", "two dims"}},
      {"layout.sequence=tp", {"sequence_parallel"}},
      {"layout.layers=tp", {"layout.layers = \"tp\"", "stage to stage", "\"pp\""}},
      {"layout.heads=cp", {"layout.heads = \"cp\"", "all_to_all", "\"tp\""}},
      {"layout.heads=ep", {"experts alone"}},
      {"layout.ffn=dp", {"batch", "two dims"}},
      {"layout.vocab=pp", {"blocks"}},
      {"layout.hidden=tp", {"unknown key layout.hidden", "sum over ranks", "whole in every layout"}},
      {"layout.head_dim=tp", {"unknown key layout.head_dim", "layout.heads"}},
      {"layout.heads=up", {"is not among \"tp\", \"\""}},
      {"layout.experts=", {"mesh.ep = 1"}},
      {"layout.layers=no", {"is not among \"pp\""}},
      {"layout.layer=pp", {"did you mean layout.layers?"}}};
  for (const auto& r : all) {
    const std::string text = problem(r.text);
    for (const auto& part : r.parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
  EXPECT_THROW(checked_deck(llama + "layout.hidden = \"tp\"\n", "small.toml", {}, 1), UsageError);
  EXPECT_NO_THROW(checked_deck(llama, "small.toml", {"layout.heads=", "layout.ffn=", "layout.vocab="}, 1));
}

TEST(Layout, WhatIsNotCutNeedNotDivide) {
  EXPECT_EQ(joined(sizes(llama, {"mesh.tp=3", "layout.heads=", "model.ffn=66"}, 3)).find("heads"), std::string::npos);
  EXPECT_EQ(joined(sizes(llama, {"mesh.tp=3", "layout.heads=", "layout.ffn="}, 3)), "");
  only(sizes(llama, {"mesh.tp=3", "layout.heads="}, 3), {"model.ffn = 64", "tp = 3"});
  EXPECT_EQ(joined(sizes(
                llama, {"mesh.tp=32", "layout.heads=", "layout.ffn=", "layout.vocab=", "run.reproducible=true"}, 32)),
            "");
  EXPECT_EQ(joined(sizes(llama,
                         {"mesh.tp=3", "mesh.cp=2", "context.method=all_to_all", "layout.heads=", "layout.ffn="}, 6)),
            "");
}

}  // namespace
}  // namespace orthant
