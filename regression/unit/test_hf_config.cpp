// config.json: both styles of rotary settings, refusals by name, and nothing lost on the way through.
// labels: smoke
// seconds: 60
#include <nlohmann/json.hpp>

#include "checkpoint/hf_config.hpp"
#include "model/rope_frequencies.hpp"
#include "model_file_helpers.hpp"

using namespace orthant;
using namespace orthant::testing_files;
using nlohmann::json;

namespace {

json llama() {
  return json::parse(R"({"model_type":"llama","hidden_size":64,"intermediate_size":160,"num_hidden_layers":2,
    "num_attention_heads":8,"num_key_value_heads":2,"vocab_size":257,"max_position_embeddings":131072,"head_dim":8,
    "rms_norm_eps":1e-06,"tie_word_embeddings":true,"hidden_act":"silu","dtype":"bfloat16","rope_parameters":
    {"rope_type":"llama3","rope_theta":500000.0,"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
     "original_max_position_embeddings":8192}})");
}

json gpt2() {
  return json::parse(R"({"model_type":"gpt2","n_embd":48,"n_head":4,"n_layer":2,"n_positions":32,"vocab_size":100,
    "activation_function":"gelu_new"})");
}

json qwen3() {
  return json::parse(R"({"model_type":"qwen3","hidden_size":64,"intermediate_size":160,"num_hidden_layers":2,
    "num_attention_heads":8,"num_key_value_heads":4,"vocab_size":257,"max_position_embeddings":128,"head_dim":16,
    "rope_theta":1000000,"hidden_act":"silu","layer_types":["full_attention","full_attention"],"sliding_window":null,
    "use_sliding_window":false})");
}

ModelConfig parse(const json& j, std::vector<std::string>* ignored = nullptr) {
  return parse_hf_config(j.dump(), "some/config.json", ignored);
}

template <class E>
void refused(const json& j, std::vector<std::string> parts) {
  parts.push_back("some/config.json");
  expect_error<E>([&] { parse(j); }, parts);
}

json with(json j, const std::string& key, json value) {
  j[key] = std::move(value);
  return j;
}

void expect_same(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.family, b.family);
  EXPECT_EQ(a.layers, b.layers);
  EXPECT_EQ(a.hidden, b.hidden);
  EXPECT_EQ(a.ffn, b.ffn);
  EXPECT_EQ(a.heads, b.heads);
  EXPECT_EQ(a.kv_heads, b.kv_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.vocab, b.vocab);
  EXPECT_EQ(a.context, b.context);
  EXPECT_EQ(a.norm_eps, b.norm_eps);
  EXPECT_EQ(a.rope_theta, b.rope_theta);
  EXPECT_EQ(a.rope.type, b.rope.type);
  EXPECT_EQ(a.rope.factor, b.rope.factor);
  EXPECT_EQ(a.rope.low_freq_factor, b.rope.low_freq_factor);
  EXPECT_EQ(a.rope.high_freq_factor, b.rope.high_freq_factor);
  EXPECT_EQ(a.rope.original_context, b.rope.original_context);
  EXPECT_EQ(a.rope.beta_fast, b.rope.beta_fast);
  EXPECT_EQ(a.rope.beta_slow, b.rope.beta_slow);
  EXPECT_EQ(a.rope.mscale, b.rope.mscale);
  EXPECT_EQ(a.rope.mscale_all_dim, b.rope.mscale_all_dim);
  EXPECT_EQ(a.rope.attention_factor, b.rope.attention_factor);
  EXPECT_EQ(a.tie_embeddings, b.tie_embeddings);
  EXPECT_EQ(a.bias, b.bias);
  EXPECT_EQ(a.qkv_bias, b.qkv_bias);
  EXPECT_EQ(a.init_std, b.init_std);
}

}  // namespace

TEST(HfConfig, Goldens) {
  const std::string goldens = std::string(ORTHANT_REGRESSION_DIR) + "/goldens/";
  std::vector<std::string> ignored;
  const ModelConfig g = read_hf_config(goldens + "gpt2-tiny", &ignored);
  EXPECT_EQ(g.family, "gpt2");
  EXPECT_EQ(g.ffn, 256);  // n_inner null
  EXPECT_EQ(g.head_dim, 16);
  EXPECT_EQ(g.kv_heads, 4);
  EXPECT_EQ(g.context, 128);
  EXPECT_TRUE(g.tie_embeddings && g.bias);
  const ModelConfig l = read_hf_config(goldens + "llama-tiny", &ignored);
  EXPECT_EQ(l.kv_heads, 2);
  EXPECT_EQ(l.ffn, 160);
  EXPECT_FALSE(l.tie_embeddings || l.bias);
  EXPECT_EQ(l.rope_theta, 10000);
  const ModelConfig q = read_hf_config(goldens + "qwen3-tiny", &ignored);
  EXPECT_EQ(q.head_dim, 16);
  EXPECT_EQ(q.rope_theta, 1e6);
  EXPECT_EQ(q.norm_eps, 1e-6);
  EXPECT_TRUE(q.tie_embeddings);
  EXPECT_TRUE(ignored.empty()) << ignored[0];
  for (const char* name : {"gpt2-tiny", "llama-tiny", "qwen3-tiny"}) {  // unchanged: the file itself comes back
    const std::string text = read_text(goldens + name + "/config.json");
    EXPECT_EQ(write_hf_config(read_hf_config(goldens + name, nullptr), "F32", text), text);
  }
}

// case O020
TEST(HfConfig, RoundTripKeepsEverything) {
  std::vector<json> all = {llama(),
                           gpt2(),
                           qwen3(),
                           with(gpt2(), "n_inner", 77),
                           with(gpt2(), "tie_word_embeddings", false),
                           with(with(llama(), "attention_bias", true), "mlp_bias", true)};
  json yarn = llama();
  yarn["rope_parameters"] = {
      {"rope_type", "yarn"},   {"rope_theta", 250000},    {"factor", 4.5},
      {"beta_fast", 30},       {"beta_slow", 2},          {"mscale", 1.5},
      {"mscale_all_dim", 0.7}, {"attention_factor", 1.1}, {"original_max_position_embeddings", 4096}};
  all.push_back(yarn);
  json linear = llama();
  linear["rope_parameters"] = {{"rope_type", "linear"}, {"rope_theta", 20000.0}, {"factor", 2}};
  all.push_back(linear);
  for (const json& j : all) {
    const ModelConfig c = parse(j);
    const std::string text = write_hf_config(c, "BF16");
    expect_same(c, parse_hf_config(text, "written", nullptr));
    EXPECT_EQ(json::parse(text)["dtype"], "bfloat16");
    // over the original: same settings, and the keys that are not ours stay
    const json merged = json::parse(write_hf_config(c, "F16", with(with(j, "eos_token_id", 7), "novel", "x").dump()));
    expect_same(c, parse_hf_config(merged.dump(), "merged", nullptr));
    EXPECT_EQ(merged["eos_token_id"], 7);
    EXPECT_EQ(merged["novel"], "x");
    EXPECT_EQ(merged["dtype"], "float16");
  }
  const ModelConfig c = parse(llama());
  EXPECT_EQ(c.rope_theta, 500000);
  EXPECT_EQ(c.norm_eps, 1e-6);
  EXPECT_EQ(c.context, 131072);
  const json written = json::parse(write_hf_config(c, "F32"));
  EXPECT_EQ(written["rope_parameters"], llama()["rope_parameters"]);
  ModelConfig changed = c;
  changed.vocab = 300;
  EXPECT_EQ(json::parse(write_hf_config(changed, "BF16", llama().dump()))["vocab_size"], 300);
}

// case O020: unknown keys are listed
TEST(HfConfig, UnknownKeysAreListed) {
  json j = llama();
  j["logits_scaling"] = 2.5;
  j["bos_token_id"] = 1;
  j["attention_dropout"] = 0.1;
  j["rope_parameters"]["novel"] = 3;
  std::vector<std::string> ignored;
  parse(j, &ignored);
  ASSERT_EQ(ignored.size(), 3u);
  EXPECT_EQ(ignored[0], "rope_parameters.novel = 3");
  EXPECT_EQ(ignored[1].substr(0, 23), "attention_dropout = 0.1");
  EXPECT_EQ(ignored[2], "logits_scaling = 2.5");
  ignored.clear();
  parse(with(with(gpt2(), "resid_pdrop", 0.1), "embd_pdrop", 0.0), &ignored);
  ASSERT_EQ(ignored.size(), 1u);
  EXPECT_NE(ignored[0].find("resid_pdrop = 0.1"), std::string::npos);
}

// case O019: the block of either style is used; an unknown type is refused by name
TEST(HfConfig, RotaryBlocksOfBothStyles) {
  json old = llama();
  old["rope_scaling"] = old["rope_parameters"];
  old["rope_scaling"].erase("rope_theta");
  old.erase("rope_parameters");
  old["rope_theta"] = 500000.0;
  expect_same(parse(llama()), parse(old));
  const auto f = rope_frequencies(parse(old)).inverse_frequencies;
  EXPECT_NEAR(f[2], 0.000524846, 5e-10);
  EXPECT_NEAR(f[3], 6.64787e-06, 5e-12);

  json oldest = llama();
  oldest.erase("rope_parameters");
  oldest["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(parse(oldest).rope.type, "linear");
  EXPECT_EQ(parse(oldest).rope.factor, 4);
  EXPECT_EQ(parse(oldest).rope_theta, 10000);  // the library's own default for a llama
  oldest["rope_scaling"] = nullptr;
  EXPECT_EQ(parse(oldest).rope.type, "default");

  json yarn = oldest;
  yarn["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"mscale", 0}};
  EXPECT_EQ(parse(yarn).rope.original_context, 131072);
  EXPECT_EQ(parse(yarn).rope.beta_fast, 32);
  EXPECT_EQ(parse(yarn).rope.mscale, 0);
  yarn["rope_scaling"]["truncate"] = false;
  refused<UsageError>(yarn, {"rope_scaling.truncate"});

  for (const char* type : {"dynamic", "longrope", "su", "mystery"}) {
    json j = llama();
    j["rope_parameters"]["rope_type"] = type;
    refused<UsageError>(j, {"rope_parameters.rope_type", type, "yarn"});
    refused<UsageError>(with(oldest, "rope_scaling", {{"type", type}, {"factor", 2.0}}), {"rope_scaling", type});
  }
  json j = llama();
  j["rope_parameters"].erase("low_freq_factor");
  refused<DataError>(j, {"rope_parameters.low_freq_factor", "missing"});
  j = llama();
  j["rope_parameters"]["factor"] = "8";
  refused<DataError>(j, {"rope_parameters.factor", "\"8\""});
  refused<DataError>(with(llama(), "rope_theta", 10000), {"rope_theta", "10000"});  // two values that disagree
  refused<DataError>(with(llama(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}),
                     {"rope_scaling", "same as"});
  j = llama();
  j["rope_parameters"] = {{"full_attention", llama()["rope_parameters"]}};
  refused<UsageError>(j, {"rope_parameters", "type of layer"});
  refused<UsageError>(with(llama(), "partial_rotary_factor", 0.5), {"partial_rotary_factor"});
  j = qwen3();
  j.erase("rope_theta");
  refused<DataError>(j, {"rope_theta", "missing"});
}

TEST(HfConfig, SizesAndDefaults) {
  json j = llama();
  j["head_dim"] = nullptr;
  j["num_attention_heads"] = 4;
  j.erase("num_key_value_heads");
  EXPECT_EQ(parse(j).head_dim, 16);
  EXPECT_EQ(parse(j).kv_heads, 4);
  j.erase("head_dim");
  EXPECT_EQ(parse(j).head_dim, 16);
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "vocab_size", "max_position_embeddings", "model_type"}) {
    json k = llama();
    k.erase(key);
    refused<DataError>(k, {key, "missing"});
  }
  refused<DataError>(with(llama(), "hidden_size", 0), {"hidden_size = 0"});
  refused<DataError>(with(llama(), "hidden_size", -64), {"hidden_size = -64"});
  refused<DataError>(with(llama(), "hidden_size", 64.5), {"hidden_size = 64.5"});
  refused<DataError>(with(llama(), "vocab_size", 18446744073709551615ull), {"vocab_size"});
  refused<DataError>(with(llama(), "num_key_value_heads", 3), {"num_key_value_heads = 3", "8"});
  refused<DataError>(with(llama(), "head_dim", 7), {"head_dim = 7"});
  refused<DataError>(with(llama(), "rms_norm_eps", 0), {"rms_norm_eps"});
  refused<DataError>(with(llama(), "tie_word_embeddings", "yes"), {"tie_word_embeddings"});
  refused<DataError>(with(gpt2(), "n_head", 5), {"n_head = 5", "48"});
}

TEST(HfConfig, RefusedByName) {
  refused<UsageError>(with(llama(), "model_type", "gemma"), {"gemma", "llama", "mixtral", "deepseek_v3"});
  refused<UsageError>(with(llama(), "model_type", "deepseek_v2"), {"deepseek_v2"});
  refused<UsageError>(with(llama(), "hidden_act", "gelu"), {"hidden_act", "gelu", "silu"});
  refused<UsageError>(with(gpt2(), "activation_function", "relu"), {"activation_function", "relu", "gelu_new"});
  refused<UsageError>(with(gpt2(), "activation_function", "gelu"), {"activation_function"});
  EXPECT_EQ(parse(with(gpt2(), "activation_function", "gelu_pytorch_tanh")).family, "gpt2");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"}) {
    refused<UsageError>(with(gpt2(), key, true), {key});
  }
  refused<UsageError>(with(gpt2(), "scale_attn_weights", false), {"scale_attn_weights = false"});
  refused<UsageError>(with(llama(), "attention_bias", true), {"attention_bias", "mlp_bias"});
  refused<UsageError>(with(llama(), "mlp_bias", true), {"mlp_bias"});
  EXPECT_TRUE(parse(with(with(llama(), "attention_bias", true), "mlp_bias", true)).bias);
  refused<UsageError>(with(qwen3(), "attention_bias", true), {"attention_bias", "qwen3"});
  refused<UsageError>(with(qwen3(), "use_sliding_window", true), {"use_sliding_window"});
  refused<UsageError>(with(qwen3(), "layer_types", {"full_attention", "sliding_attention"}), {"sliding_attention"});
  refused<UsageError>(with(llama(), "quantization_config", {{"bits", 4}}), {"quantization_config"});
  json mistral = with(llama(), "model_type", "mistral");
  refused<UsageError>(mistral, {"sliding_window", "4096"});
  refused<UsageError>(with(mistral, "sliding_window", 4096), {"sliding_window = 4096"});
  EXPECT_EQ(parse(with(mistral, "sliding_window", nullptr)).family, "llama");
}

TEST(HfConfig, BrokenFiles) {
  TempFolder folder;
  expect_error<DataError>([&] { read_hf_config(folder.path(), nullptr); }, {"config.json", "no such file"});
  const std::vector<std::string> broken = {"[]",
                                           "{",
                                           "{} x",
                                           "{\"a\":\"\xff\"}",
                                           "{\"a\":1,\"a\":2}",
                                           std::string("{}\0{}", 5),
                                           "{\"a\":" + std::string(100000, '[')};
  for (const std::string& text : broken) {
    write_text(folder.path("config.json"), text);
    expect_error<DataError>([&] { read_hf_config(folder.path(), nullptr); }, {"config.json"});
  }
}

TEST(HfConfig, WhatNoConfigCanSay) {
  ModelConfig c = parse(llama());
  c.qkv_bias = true;
  expect_error<UsageError>([&] { write_hf_config(c, "F32"); }, {"qkv_bias"});
  c = parse(qwen3());
  c.bias = true;
  expect_error<UsageError>([&] { write_hf_config(c, "F32"); }, {"qwen3", "bias"});
  c = parse(gpt2());
  c.kv_heads = 2;
  expect_error<UsageError>([&] { write_hf_config(c, "F32"); }, {"kv_heads"});
  c.family = "bert";
  expect_error<UsageError>([&] { write_hf_config(c, "F32"); }, {"bert", "mixtral"});
  expect_error<UsageError>([&] { write_hf_config(parse(llama()), "I8"); }, {"I8", "BF16"});
}
