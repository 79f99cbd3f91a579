// config.json and tensors of mixtral and deepseek_v3: every key honoured, refused or listed; nothing lost on the way.
// labels: smoke asan
// seconds: 60
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_export.hpp"
#include "checkpoint/hf_folder.hpp"
#include "model/family.hpp"
#include "model_file_helpers.hpp"

using namespace orthant;
using namespace orthant::testing_files;
using nlohmann::json;

namespace {

using Texts = std::vector<std::string>;

const std::string goldens = std::string(ORTHANT_REGRESSION_DIR) + "/goldens/";

json golden(const std::string& name) { return json::parse(read_text(goldens + name + "/config.json")); }
json mixtral() { return golden("mixtral-tiny"); }
json deepseek() { return golden("deepseek-tiny"); }

json with(json j, const std::string& key, json value) {
  j[key] = std::move(value);
  return j;
}
json without(json j, const std::string& key) {
  EXPECT_EQ(j.erase(key), 1u) << key;
  return j;
}

ModelConfig parse(const json& j, Texts* ignored = nullptr) {
  return parse_hf_config(j.dump(), "some/config.json", ignored);
}

template <class E>
void refused(const json& j, Texts parts) {
  parts.push_back("some/config.json");
  expect_error<E>([&] { parse(j); }, parts);
}

void expect_same(const ModelConfig& a, const ModelConfig& b) {
  const auto sizes = [](const ModelConfig& c) {
    return std::tuple(c.family, c.layers, c.hidden, c.ffn, c.heads, c.kv_heads, c.head_dim, c.vocab, c.context,
                      c.norm_eps, c.rope_theta, c.tie_embeddings, c.bias, c.qkv_bias, c.init_std);
  };
  const auto rope = [](const RopeScaling& r) {
    return std::tuple(r.type, r.factor, r.original_context, r.beta_fast, r.beta_slow, r.mscale, r.mscale_all_dim);
  };
  const auto moe = [](const MoeConfig& e) {
    return std::tuple(e.experts, e.top_k, e.ffn, e.shared_experts, e.first_dense_layers, e.sigmoid, e.groups,
                      e.top_groups, e.norm_topk, e.scale, e.aux_loss);
  };
  const auto mla = [](const MlaConfig& l) {
    return std::tuple(l.q_lora_rank, l.kv_lora_rank, l.nope_dim, l.rope_dim, l.v_dim, l.rope_interleave);
  };
  EXPECT_EQ(sizes(a), sizes(b));
  EXPECT_EQ(rope(a.rope), rope(b.rope));
  EXPECT_EQ(moe(a.moe), moe(b.moe));
  EXPECT_EQ(mla(a.mla), mla(b.mla));
}

json yarn(json j) {
  return with(std::move(j), "rope_parameters",
              {{"rope_type", "yarn"},
               {"rope_theta", 10000.0},
               {"factor", 40.0},
               {"beta_fast", 32.0},
               {"beta_slow", 1.0},
               {"mscale", 1.0},
               {"mscale_all_dim", 0.7},
               {"original_max_position_embeddings", 64}});
}

/// Parameters of a block by our names, each of one or two dims.
using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

void add_expert(Shapes& out, const std::string& start, int64_t ffn, int64_t hidden) {
  out.push_back({start + ".gate.weight", {ffn, hidden}});
  out.push_back({start + ".up.weight", {ffn, hidden}});
  out.push_back({start + ".down.weight", {hidden, ffn}});
}

Shapes block(const ModelConfig& c, int64_t layer) {
  const int64_t h = c.hidden, q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  Shapes out = {{"norm1.weight", {h}}, {"norm2.weight", {h}}};
  if (c.family == "mixtral") {
    for (const auto& [part, rows] : {std::pair{"q", q}, std::pair{"k", kv}, std::pair{"v", kv}})
      out.push_back({std::string("attention.") + part + ".weight", {rows, h}});
    out.push_back({"attention.out.weight", {h, q}});
  } else {
    const MlaConfig& l = c.mla;
    if (l.q_lora_rank > 0) {
      out.push_back({"attention.q_a.weight", {l.q_lora_rank, h}});
      out.push_back({"attention.q_a_norm.weight", {l.q_lora_rank}});
      out.push_back({"attention.q_b.weight", {c.heads * l.qk_dim(), l.q_lora_rank}});
    } else {
      out.push_back({"attention.q.weight", {c.heads * l.qk_dim(), h}});
    }
    out.push_back({"attention.kv_a.weight", {l.kv_lora_rank + l.rope_dim, h}});
    out.push_back({"attention.kv_a_norm.weight", {l.kv_lora_rank}});
    out.push_back({"attention.kv_b.weight", {c.heads * (l.nope_dim + l.v_dim), l.kv_lora_rank}});
    out.push_back({"attention.out.weight", {h, c.heads * l.v_dim}});
  }
  if (!c.mixture(layer)) {
    add_expert(out, "mlp", c.ffn, h);
    return out;
  }
  out.push_back({"moe.router.weight", {c.moe.experts, h}});
  if (c.selection_bias()) out.push_back({"moe.router.bias", {c.moe.experts}});
  for (int64_t e = 0; e < c.moe.experts; ++e) add_expert(out, "moe.experts." + std::to_string(e), c.moe.ffn, h);
  if (c.moe.shared_experts > 0) add_expert(out, "moe.shared", c.moe.shared_experts * c.moe.ffn, h);
  return out;
}

std::vector<Param> params_of(const ModelConfig& c) {
  std::vector<Param> out;
  const auto add = [&](int64_t layer, const std::string& leaf, const std::vector<int64_t>& shape) {
    Param p;
    p.name = layer < 0 ? leaf : "layers." + std::to_string(layer) + "." + leaf;
    for (const int64_t n : shape) p.dims.push_back({DimName::hidden, n});
    p.file = family(c.family).file(c, layer, leaf);
    out.push_back(std::move(p));
  };
  add(-1, "embedding.tokens.weight", {c.vocab, c.hidden});
  add(-1, "final_norm.weight", {c.hidden});
  if (!c.tie_embeddings) add(-1, "head.weight", {c.vocab, c.hidden});
  for (int64_t l = 0; l < c.layers; ++l)
    for (const auto& [leaf, shape] : block(c, l)) add(l, leaf, shape);
  return out;
}

}  // namespace

TEST(HfMixtures, Goldens) {
  Texts ignored;
  const ModelConfig m = read_hf_config(goldens + "mixtral-tiny", &ignored);
  EXPECT_TRUE(ignored.empty()) << ignored[0];
  EXPECT_EQ(m.family, "mixtral");
  EXPECT_EQ(m.head_dim, 8);  // null: hidden / heads
  EXPECT_EQ(m.kv_heads, 4);
  EXPECT_EQ(m.moe.experts, 8);
  EXPECT_EQ(m.moe.top_k, 2);
  EXPECT_EQ(m.moe.ffn, 96);
  EXPECT_EQ(m.moe.first_dense_layers, 0);
  EXPECT_EQ(m.moe.aux_loss, 0);
  EXPECT_FALSE(m.moe.sigmoid);
  const ModelConfig d = read_hf_config(goldens + "deepseek-tiny", &ignored);
  ASSERT_EQ(ignored.size(), 1u);
  EXPECT_EQ(ignored[0].substr(0, 28), "num_nextn_predict_layers = 1");
  EXPECT_EQ(d.family, "deepseek");
  EXPECT_EQ(d.ffn, 128);
  EXPECT_EQ(d.head_dim, 8);
  EXPECT_EQ(d.mla.q_lora_rank, 48);
  EXPECT_EQ(d.mla.kv_lora_rank, 32);
  EXPECT_EQ(d.mla.qk_dim(), 24);
  EXPECT_EQ(d.mla.v_dim, 16);
  EXPECT_TRUE(d.mla.rope_interleave && d.moe.sigmoid && d.moe.norm_topk);
  EXPECT_EQ(d.moe.experts, 8);
  EXPECT_EQ(d.moe.ffn, 48);
  EXPECT_EQ(d.moe.shared_experts, 1);
  EXPECT_EQ(d.moe.first_dense_layers, 1);
  EXPECT_EQ(d.moe.groups, 4);
  EXPECT_EQ(d.moe.top_groups, 2);
  EXPECT_EQ(d.moe.scale, 2.5);
  for (const char* name : {"mixtral-tiny", "deepseek-tiny"}) {  // unchanged: the file itself comes back
    const std::string text = read_text(goldens + name + "/config.json");
    EXPECT_EQ(write_hf_config(read_hf_config(goldens + name, nullptr), "F32", text), text);
  }
}

// case O020
TEST(HfMixtures, RoundTripKeepsEverything) {
  json loss = with(mixtral(), "output_router_logits", true);
  const std::vector<json> all = {mixtral(),
                                 deepseek(),
                                 with(loss, "router_aux_loss_coef", 0.02),
                                 with(with(loss, "router_aux_loss_coef", 0.001), "num_hidden_layers", 7),
                                 with(with(mixtral(), "head_dim", 16), "tie_word_embeddings", true),
                                 with(mixtral(), "num_key_value_heads", nullptr),
                                 with(with(deepseek(), "q_lora_rank", nullptr), "rope_interleave", false),
                                 with(with(deepseek(), "n_shared_experts", 0), "first_k_dense_replace", 4),
                                 with(with(deepseek(), "norm_topk_prob", false), "routed_scaling_factor", 1.7),
                                 yarn(deepseek())};
  for (const json& j : all) {
    const ModelConfig c = parse(j);
    expect_same(c, parse_hf_config(write_hf_config(c, "BF16"), "written", nullptr));
    const json merged = json::parse(write_hf_config(c, "F16", with(j, "novel", "x").dump()));
    expect_same(c, parse_hf_config(merged.dump(), "merged", nullptr));
    EXPECT_EQ(merged["novel"], "x");
    EXPECT_EQ(merged["eos_token_id"], 256);
    EXPECT_EQ(merged["model_type"], j["model_type"]);
  }
  // one changed setting under moe or mla is enough to write anew
  const std::string original = deepseek().dump();
  ModelConfig changed = parse(deepseek());
  changed.moe.scale = 3;
  EXPECT_EQ(json::parse(write_hf_config(changed, "F32", original))["routed_scaling_factor"], 3);
  changed = parse(deepseek());
  changed.mla.rope_interleave = false;
  EXPECT_EQ(json::parse(write_hf_config(changed, "F32", original))["rope_interleave"], false);
}

TEST(HfMixtures, AWrittenConfigHasTheKeysOfTheReference) {
  // what the library writes besides the model's own settings
  const std::set<std::string> not_ours = {"bos_token_id",
                                          "eos_token_id",
                                          "pad_token_id",
                                          "transformers_version",
                                          "use_cache",
                                          "pretraining_tp",
                                          "num_nextn_predict_layers",
                                          "router_aux_loss_coef"};
  for (const json& j : {mixtral(), deepseek()}) {
    const json written = json::parse(write_hf_config(parse(j), "F32"));
    for (const auto& [key, value] : j.items()) {
      if (not_ours.count(key)) continue;
      EXPECT_EQ(written.value(key, json("absent")), value) << key;
    }
    for (const auto& [key, value] : written.items()) EXPECT_TRUE(j.contains(key)) << key;
  }
}

TEST(HfMixtures, AuxiliaryLoss) {
  Texts ignored;
  json j = with(mixtral(), "router_aux_loss_coef", 0.02);
  EXPECT_EQ(parse(j, &ignored).moe.aux_loss, 0);
  ASSERT_EQ(ignored.size(), 1u);
  EXPECT_NE(ignored[0].find("router_aux_loss_coef = 0.02 (as output_router_logits is false"), std::string::npos);
  ignored.clear();
  j["output_router_logits"] = true;
  EXPECT_DOUBLE_EQ(parse(j, &ignored).moe.aux_loss, 0.02 * 2 / 4);  // x top_k / mixture layers
  EXPECT_TRUE(ignored.empty());
  EXPECT_DOUBLE_EQ(parse(without(j, "router_aux_loss_coef")).moe.aux_loss, 0.001 * 2 / 4);
  refused<DataError>(with(j, "router_aux_loss_coef", -1), {"router_aux_loss_coef = -1"});
  json d = with(with(deepseek(), "router_aux_loss_coef", 0.03), "output_router_logits", true);
  EXPECT_DOUBLE_EQ(parse(d).moe.aux_loss, 0.03 * 2 / 3);  // one of four layers is dense
  EXPECT_EQ(parse(without(d, "router_aux_loss_coef")).moe.aux_loss, 0);
}

TEST(HfMixtures, KeysOfDeepseekThatAreListed) {
  json j = without(deepseek(), "num_nextn_predict_layers");
  Texts ignored;
  const json usual =
      with(with(with(with(j, "ep_size", 1), "seq_aux", true), "aux_loss_alpha", 0.0), "moe_layer_freq", 1);
  parse(with(with(usual, "scoring_func", "sigmoid"), "topk_method", "noaux_tc"), &ignored);
  EXPECT_TRUE(ignored.empty()) << ignored[0];
  parse(with(with(with(with(j, "ep_size", 8), "aux_loss_alpha", 0.001), "seq_aux", false), "novel", 1), &ignored);
  ASSERT_EQ(ignored.size(), 4u);
  EXPECT_EQ(ignored[0].substr(0, 23), "aux_loss_alpha = 0.001 ");
  EXPECT_EQ(ignored[1].substr(0, 16), "seq_aux = false ");
  EXPECT_EQ(ignored[2].substr(0, 12), "ep_size = 8 ");
  EXPECT_EQ(ignored[3], "novel = 1");
}

TEST(HfMixtures, SizesAndDefaults) {
  EXPECT_EQ(parse(with(mixtral(), "num_key_value_heads", nullptr)).kv_heads, 8);
  EXPECT_EQ(parse(without(mixtral(), "sliding_window")).family, "mixtral");  // the family's default is none
  EXPECT_EQ(parse(without(mixtral(), "rms_norm_eps")).norm_eps, 1e-5);
  EXPECT_EQ(parse(without(deepseek(), "rms_norm_eps")).norm_eps, 1e-6);
  EXPECT_TRUE(parse(without(deepseek(), "rope_interleave")).mla.rope_interleave);
  EXPECT_EQ(parse(without(without(deepseek(), "head_dim"), "qk_head_dim")).head_dim, 8);
  EXPECT_EQ(parse(without(deepseek(), "num_key_value_heads")).kv_heads, 4);
  EXPECT_EQ(parse(with(deepseek(), "q_lora_rank", nullptr)).mla.q_lora_rank, 0);
  const ModelConfig y = parse(yarn(deepseek()));
  EXPECT_EQ(y.rope.mscale_all_dim, 0.7);
  EXPECT_EQ(y.rope.original_context, 64);
  for (const char* key : {"num_local_experts", "num_experts_per_tok", "num_key_value_heads", "intermediate_size"})
    refused<DataError>(without(mixtral(), key), {key, "missing"});
  refused<DataError>(without(mixtral(), "rope_parameters"), {"rope_theta", "missing"});
  for (const char* key : {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
                          "first_k_dense_replace", "n_group", "topk_group", "routed_scaling_factor", "kv_lora_rank",
                          "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
    refused<DataError>(without(deepseek(), key), {key, "missing"});
}

TEST(HfMixtures, RefusedByName) {
  refused<DataError>(with(mixtral(), "num_experts_per_tok", 9), {"num_experts_per_tok = 9", "num_local_experts = 8"});
  refused<DataError>(with(mixtral(), "num_key_value_heads", 3), {"num_key_value_heads = 3", "8"});
  refused<DataError>(with(mixtral(), "head_dim", 7), {"head_dim = 7", "even"});
  refused<UsageError>(with(mixtral(), "sliding_window", 4096), {"sliding_window = 4096"});
  refused<UsageError>(with(mixtral(), "router_jitter_noise", 0.1), {"router_jitter_noise = 0.1"});
  refused<UsageError>(with(mixtral(), "attention_bias", true), {"attention_bias = true"});
  refused<UsageError>(with(mixtral(), "hidden_act", "gelu"), {"hidden_act", "silu"});
  refused<DataError>(with(deepseek(), "qk_head_dim", 16), {"qk_head_dim = 16", "24"});
  refused<DataError>(with(deepseek(), "head_dim", 24), {"head_dim = 24", "8", "qk_rope_head_dim"});
  refused<DataError>(with(deepseek(), "num_key_value_heads", 2), {"num_key_value_heads = 2", "4"});
  refused<DataError>(with(deepseek(), "num_local_experts", 4), {"num_local_experts = 4", "n_routed_experts"});
  refused<DataError>(with(deepseek(), "n_group", 3), {"n_group = 3", "n_routed_experts = 8"});
  refused<DataError>(with(deepseek(), "topk_group", 5), {"topk_group = 5", "n_group = 4"});
  refused<DataError>(with(deepseek(), "num_experts_per_tok", 5), {"num_experts_per_tok = 5", "at most 4"});
  refused<DataError>(with(deepseek(), "first_k_dense_replace", 5), {"first_k_dense_replace = 5", "4"});
  refused<DataError>(with(deepseek(), "n_shared_experts", -1), {"n_shared_experts = -1", "from 0"});
  refused<UsageError>(with(deepseek(), "scoring_func", "softmax"), {"scoring_func", "softmax", "sigmoid"});
  refused<UsageError>(with(deepseek(), "topk_method", "greedy"), {"topk_method", "greedy", "noaux_tc"});
  refused<UsageError>(with(deepseek(), "moe_layer_freq", 2), {"moe_layer_freq = 2"});
  refused<UsageError>(with(deepseek(), "attention_bias", true), {"attention_bias = true"});
  refused<UsageError>(with(deepseek(), "quantization_config", {{"bits", 8}}), {"quantization_config"});
}

TEST(HfMixtures, WhatNoConfigCanSay) {
  const auto cannot = [](const json& j, auto change, const Texts& parts) {
    ModelConfig c = parse(j);
    change(c);
    expect_error<UsageError>([&] { write_hf_config(c, "F32"); }, parts);
  };
  cannot(mixtral(), [](ModelConfig& c) { c.moe.sigmoid = true; }, {"mixtral", "model.moe.router"});
  cannot(mixtral(), [](ModelConfig& c) { c.moe.groups = 2; }, {"model.moe.groups = 2"});
  cannot(mixtral(), [](ModelConfig& c) { c.moe.norm_topk = false; }, {"model.moe.norm_topk"});
  cannot(mixtral(), [](ModelConfig& c) { c.moe.scale = 2.5; }, {"model.moe.scale = 2.5"});
  cannot(deepseek(), [](ModelConfig& c) { c.moe.sigmoid = false; }, {"deepseek", "model.moe.router"});
  cannot(deepseek(), [](ModelConfig& c) { c.bias = true; }, {"deepseek", "model.bias"});
}

TEST(HfMixtures, EveryTensorOfTheGoldensIsAParameter) {
  for (const std::string name : {"mixtral-tiny", "deepseek-tiny"}) {
    const ModelConfig c = read_hf_config(goldens + name, nullptr);
    const HfFolder folder(goldens + name);
    const auto params = params_of(c);
    folder.check(params);
    EXPECT_TRUE(folder.unused(params).empty()) << folder.unused(params)[0];
    EXPECT_EQ(params.size(), folder.names().size());
  }
  // which of an expert's three is which: the two of one shape must not be swapped
  const ModelConfig m = parse(mixtral());
  EXPECT_EQ(family("mixtral").file(m, 2, "moe.experts.7.gate.weight").tensor,
            "model.layers.2.block_sparse_moe.experts.7.w1.weight");
  EXPECT_EQ(family("mixtral").file(m, 2, "moe.experts.7.up.weight").tensor,
            "model.layers.2.block_sparse_moe.experts.7.w3.weight");
  const ModelConfig d = parse(deepseek());
  EXPECT_EQ(family("deepseek").file(d, 3, "moe.experts.10.up.weight").tensor,
            "model.layers.3.mlp.experts.10.up_proj.weight");
  EXPECT_EQ(family("deepseek").file(d, 3, "moe.router.bias").tensor,
            "model.layers.3.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(family("deepseek").file(parse(with(deepseek(), "q_lora_rank", nullptr)), 0, "attention.q.weight").tensor,
            "model.layers.0.self_attn.q_proj.weight");
  EXPECT_THROW(family("mixtral").file(m, 0, "mlp.gate.weight"), LogicError);
  EXPECT_THROW(family("deepseek").file(d, 1, "moe.experts.3.bias"), LogicError);
}

// layers that predict further tokens lie behind the last one; they may be there or not
TEST(HfMixtures, TensorsBehindTheLastLayerAreListedAndSkipped) {
  TempFolder folder;
  const auto params = params_of(parse(deepseek()));
  auto specs = file_tensors(params, {});
  const Texts further = {"model.layers.4.eh_proj.weight", "model.layers.4.embed_tokens.weight",
                         "model.layers.4.mlp.experts.0.up_proj.weight", "model.layers.4.shared_head.head.weight"};
  for (const auto& name : further) specs.push_back({name, "F32", {2, 3}});
  specs.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {4}});  // a table that is rebuilt
  SafetensorsWriter writer(folder.path("model.safetensors"), specs);
  for (const auto& spec : specs) {
    const std::vector<float> x(static_cast<size_t>(spec.elements()), 1.0f);
    writer.write(spec.name, x.data(), spec.elements());
  }
  writer.finish();
  const HfFolder files(folder.path());
  files.check(params);
  EXPECT_EQ(files.unused(params), further);
}

TEST(HfMixtures, AMissingExpertIsNamed) {
  const HfFolder files(goldens + "mixtral-tiny");
  const auto params = params_of(parse(with(mixtral(), "num_local_experts", 9)));
  expect_error<DataError>([&] { files.check(params); }, {"12 tensors", "block_sparse_moe.experts.8.w1.weight"});
}
