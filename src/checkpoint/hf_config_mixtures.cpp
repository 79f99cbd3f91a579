// See hf_config_mixtures.hpp. Defaults are those of transformers' MixtralConfig and DeepseekV3Config; where a default
// is one particular model's size, the key must be there.
#include "checkpoint/hf_config_mixtures.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "orthant/error.hpp"

namespace orthant {

using json = nlohmann::json;

namespace {

void read_sizes(ConfigReader& in, ModelConfig& c) {
  c.layers = in.count("num_hidden_layers");
  c.hidden = in.count("hidden_size");
  c.ffn = in.count("intermediate_size");
  c.heads = in.count("num_attention_heads");
  c.context = in.count("max_position_embeddings");
  c.tie_embeddings = in.flag_or("tie_word_embeddings", false);
  require_silu(in);
}

void refuse_biases(ConfigReader& in) {
  in.only("attention_bias", false, "a mixture of experts with biases is not built");
  in.only("mlp_bias", false, "a mixture of experts with biases is not built");
}

// A token cannot go to more experts than may be chosen.
void check_choice(ConfigReader& in, const MoeConfig& moe, const std::string& experts_key) {
  if (moe.top_k > moe.experts)
    in.bad("num_experts_per_tok", moe.top_k, "at most " + experts_key + " = " + std::to_string(moe.experts));
  if (moe.experts % moe.groups != 0)
    in.bad("n_group", moe.groups, "a divisor of " + experts_key + " = " + std::to_string(moe.experts));
  if (moe.top_groups > moe.groups)
    in.bad("topk_group", moe.top_groups, "at most n_group = " + std::to_string(moe.groups));
  const int64_t reachable = moe.top_groups * (moe.experts / moe.groups);
  if (moe.top_k > reachable)
    in.bad("num_experts_per_tok", moe.top_k,
           "at most " + std::to_string(reachable) + ", the experts of topk_group groups,");
}

void read_aux_loss(ConfigReader& in, ModelConfig& c, double absent, std::vector<std::string>* ignored) {
  const bool on = in.flag_or("output_router_logits", false);
  const json* given = in.find("router_aux_loss_coef");
  if (given && (!given->is_number() || !(given->get<double>() >= 0) || !std::isfinite(given->get<double>())))
    in.bad("router_aux_loss_coef", *given, "a number from 0");
  const double coefficient = given ? given->get<double>() : absent;
  if (!on) {
    in.list("router_aux_loss_coef", 0.0, "as output_router_logits is false; model.moe.aux_loss in the deck sets it",
            ignored);
  } else if (c.mixture_layers() > 0) {
    c.moe.aux_loss = coefficient * static_cast<double>(c.moe.top_k) / static_cast<double>(c.mixture_layers());
  }
}

/// The way back, exact where a double allows it.
double aux_coefficient(const ModelConfig& c) {
  const double top_k = static_cast<double>(c.moe.top_k), layers = static_cast<double>(c.mixture_layers());
  const double first = c.moe.aux_loss * layers / top_k;
  for (const double x : {first, std::nextafter(first, 0.0), std::nextafter(first, INFINITY)})
    if (x * top_k / layers == c.moe.aux_loss) return x;
  return first;
}

void no_place(const ModelConfig& c, bool wrong, const std::string& key, const std::string& value) {
  if (wrong) throw UsageError("a " + c.family + " with " + key + " = " + value + " has no Hugging Face config.json");
}

json common_keys(const ModelConfig& c) {
  no_place(c, c.bias, "model.bias", "true");
  no_place(c, c.qkv_bias, "model.qkv_bias", "true");
  json out = {{"attention_dropout", 0.0},
              {"hidden_act", "silu"},
              {"hidden_size", c.hidden},
              {"intermediate_size", c.ffn},
              {"max_position_embeddings", c.context},
              {"num_attention_heads", c.heads},
              {"num_experts_per_tok", c.moe.top_k},
              {"num_hidden_layers", c.layers},
              {"num_key_value_heads", c.kv_heads},
              {"output_router_logits", c.moe.aux_loss > 0},
              {"rms_norm_eps", c.norm_eps},
              {"rope_parameters", rope_block(c)}};
  if (c.moe.aux_loss > 0) out["router_aux_loss_coef"] = aux_coefficient(c);
  return out;
}

}  // namespace

void read_mixtral(ConfigReader& in, ModelConfig& c, std::vector<std::string>* ignored) {
  read_sizes(in, c);
  // null means as many as query heads, absent the eight of one particular model
  if (!in.contains("num_key_value_heads")) in.missing("num_key_value_heads", "a divisor of num_attention_heads");
  c.kv_heads = in.count_or("num_key_value_heads", c.heads);
  if (c.heads % c.kv_heads != 0)
    in.bad("num_key_value_heads", c.kv_heads, "a divisor of num_attention_heads = " + std::to_string(c.heads));
  if (!in.find("head_dim") && c.hidden % c.heads != 0)
    in.bad("num_attention_heads", c.heads, "a divisor of hidden_size = " + std::to_string(c.hidden));
  c.head_dim = in.count_or("head_dim", c.hidden / c.heads);
  if (c.head_dim % 2 != 0) in.bad("head_dim", c.head_dim, "an even number (rotary pairs)");
  c.norm_eps = in.positive_or("rms_norm_eps", 1e-5);
  read_rope(in, c, true, ignored);
  if (const json* window = in.find("sliding_window"))
    in.refuse("sliding_window", *window, "sliding-window attention is not built; null is right");
  refuse_biases(in);

  c.moe.experts = in.count("num_local_experts");
  c.moe.top_k = in.count("num_experts_per_tok");
  c.moe.ffn = c.ffn;
  check_choice(in, c.moe, "num_local_experts");
  if (const json* noise = in.find("router_jitter_noise"); noise && *noise != 0)
    in.refuse("router_jitter_noise", *noise, "noise on the input of routers is not built; 0 is right");
  read_aux_loss(in, c, 0.001, ignored);
  note_dropout(in, "attention_dropout", ignored);
}

void read_deepseek(ConfigReader& in, ModelConfig& c, std::vector<std::string>* ignored) {
  read_sizes(in, c);
  c.kv_heads = c.heads;
  in.agrees("num_key_value_heads", c.heads, "num_attention_heads: latent attention has a key for each query head");
  if (!in.contains("q_lora_rank")) in.missing("q_lora_rank", "a width, or null for a plain query projection,");
  c.mla.q_lora_rank = in.count_or("q_lora_rank", 0);
  c.mla.kv_lora_rank = in.count("kv_lora_rank");
  c.mla.nope_dim = in.count("qk_nope_head_dim");
  c.mla.rope_dim = in.count("qk_rope_head_dim");
  c.mla.v_dim = in.count("v_head_dim");
  c.mla.rope_interleave = in.flag_or("rope_interleave", true);
  c.head_dim = c.mla.rope_dim;
  if (c.mla.rope_dim % 2 != 0) in.bad("qk_rope_head_dim", c.mla.rope_dim, "an even number (rotary pairs)");
  in.agrees("qk_head_dim", c.mla.qk_dim(), "qk_nope_head_dim + qk_rope_head_dim");
  in.agrees("head_dim", c.mla.rope_dim, "qk_rope_head_dim");
  c.norm_eps = in.positive_or("rms_norm_eps", 1e-6);
  read_rope(in, c, false, ignored);
  refuse_biases(in);

  c.moe.experts = in.count("n_routed_experts");
  in.agrees("num_local_experts", c.moe.experts, "n_routed_experts");
  c.moe.top_k = in.count("num_experts_per_tok");
  c.moe.ffn = in.count("moe_intermediate_size");
  c.moe.shared_experts = in.count("n_shared_experts", 0);
  c.moe.first_dense_layers = in.count("first_k_dense_replace", 0);
  if (c.moe.first_dense_layers > c.layers)
    in.bad("first_k_dense_replace", c.moe.first_dense_layers,
           "at most num_hidden_layers = " + std::to_string(c.layers));
  c.moe.sigmoid = true;
  c.moe.groups = in.count("n_group");
  c.moe.top_groups = in.count("topk_group");
  c.moe.norm_topk = in.flag_or("norm_topk_prob", true);
  c.moe.scale = in.positive("routed_scaling_factor");
  check_choice(in, c.moe, "n_routed_experts");
  in.only_value("scoring_func", "sigmoid", "these router scores are not built for deepseek_v3");
  in.only_value("topk_method", "noaux_tc", "this way to choose experts is not built");
  in.only_value("moe_layer_freq", 1, "mixture layers with dense ones between them are not built");
  read_aux_loss(in, c, 0, ignored);
  const std::string by_deck = "model.moe.aux_loss in the deck sets it";
  in.list("aux_loss_alpha", 0, by_deck, ignored);
  in.list("seq_aux", true, "the auxiliary loss is per sequence here", ignored);
  in.list("ep_size", 1, "mesh.ep decides", ignored);
  in.list("num_nextn_predict_layers", 0, "layers that predict further tokens are skipped", ignored);
  note_dropout(in, "attention_dropout", ignored);
}

json mixtral_keys(const ModelConfig& c) {
  const MoeConfig& moe = c.moe;
  no_place(c, moe.sigmoid, "model.moe.router", "\"sigmoid\"");
  no_place(c, moe.groups != 1, "model.moe.groups", std::to_string(moe.groups));
  no_place(c, !moe.norm_topk, "model.moe.norm_topk", "false");
  no_place(c, moe.scale != 1, "model.moe.scale", json(moe.scale).dump());
  no_place(c, moe.shared_experts != 0, "model.moe.shared_experts", std::to_string(moe.shared_experts));
  no_place(c, moe.first_dense_layers != 0, "model.moe.first_dense_layers", std::to_string(moe.first_dense_layers));
  json out = common_keys(c);
  out["architectures"] = json::array({"MixtralForCausalLM"});
  out["head_dim"] = c.head_dim * c.heads == c.hidden ? json(nullptr) : json(c.head_dim);
  out["intermediate_size"] = moe.ffn;  // no layer is dense, so this is the width of an expert
  out["num_local_experts"] = moe.experts;
  out["router_jitter_noise"] = 0.0;
  out["sliding_window"] = nullptr;
  return out;
}

json deepseek_keys(const ModelConfig& c) {
  const MoeConfig& moe = c.moe;
  const MlaConfig& mla = c.mla;
  no_place(c, !moe.sigmoid, "model.moe.router", "\"softmax\"");
  json out = common_keys(c);
  out["architectures"] = json::array({"DeepseekV3ForCausalLM"});
  out["attention_bias"] = false;
  out["first_k_dense_replace"] = moe.first_dense_layers;
  out["head_dim"] = mla.rope_dim;
  out["kv_lora_rank"] = mla.kv_lora_rank;
  out["moe_intermediate_size"] = moe.ffn;
  out["n_group"] = moe.groups;
  out["n_routed_experts"] = moe.experts;
  out["n_shared_experts"] = moe.shared_experts;
  out["norm_topk_prob"] = moe.norm_topk;
  out["q_lora_rank"] = mla.q_lora_rank > 0 ? json(mla.q_lora_rank) : json(nullptr);
  out["qk_head_dim"] = mla.qk_dim();
  out["qk_nope_head_dim"] = mla.nope_dim;
  out["qk_rope_head_dim"] = mla.rope_dim;
  out["rope_interleave"] = mla.rope_interleave;
  out["routed_scaling_factor"] = moe.scale;
  out["topk_group"] = moe.top_groups;
  out["v_head_dim"] = mla.v_dim;
  return out;
}

bool same_mixture(const ModelConfig& a, const ModelConfig& b) {
  const auto key = [](const ModelConfig& c) {
    const MoeConfig& e = c.moe;
    const MlaConfig& l = c.mla;
    return std::tuple(e.experts, e.top_k, e.ffn, e.shared_experts, e.first_dense_layers, e.sigmoid, e.groups,
                      e.top_groups, e.norm_topk, e.scale, e.aux_loss, l.q_lora_rank, l.kv_lora_rank, l.nope_dim,
                      l.rope_dim, l.v_dim, l.rope_interleave);
  };
  return key(a) == key(b);
}

}  // namespace orthant
