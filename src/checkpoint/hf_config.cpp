// See hf_config.hpp. Every key that is looked at is ticked off; what remains is reported.
#include "checkpoint/hf_config.hpp"

#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/hf_config_mixtures.hpp"
#include "checkpoint/hf_config_reader.hpp"
#include "checkpoint/strict_json.hpp"
#include "orthant/error.hpp"

namespace orthant {

using json = nlohmann::json;

namespace {

// Keys that change nothing in training a causal language model from its weights: names, token ids, generation and
// output options, the classification head's summary, and how the files were made.
const std::set<std::string> harmless = {"architectures",
                                        "model_type",
                                        "_name_or_path",
                                        "name_or_path",
                                        "auto_map",
                                        "transformers_version",
                                        "torch_dtype",
                                        "dtype",
                                        "bos_token_id",
                                        "eos_token_id",
                                        "pad_token_id",
                                        "sep_token_id",
                                        "cls_token_id",
                                        "decoder_start_token_id",
                                        "use_cache",
                                        "n_ctx",
                                        "summary_activation",
                                        "summary_first_dropout",
                                        "summary_proj_to_labels",
                                        "summary_type",
                                        "summary_use_proj",
                                        "task_specific_params",
                                        "output_attentions",
                                        "output_hidden_states",
                                        "output_scores",
                                        "return_dict",
                                        "return_dict_in_generate",
                                        "torchscript",
                                        "id2label",
                                        "label2id",
                                        "finetuning_task",
                                        "problem_type",
                                        "tokenizer_class",
                                        "prefix",
                                        "chunk_size_feed_forward",
                                        "is_encoder_decoder",
                                        "is_decoder",
                                        "_attn_implementation_autoset",
                                        "attn_implementation",
                                        "pretraining_tp",
                                        "max_window_layers",
                                        "temperature",
                                        "top_k",
                                        "top_p",
                                        "max_length",
                                        "min_length",
                                        "do_sample",
                                        "num_beams"};

void read_gpt2(ConfigReader& in, ModelConfig& c, std::vector<std::string>* ignored) {
  c.layers = in.count("n_layer");
  c.hidden = in.count("n_embd");
  c.heads = c.kv_heads = in.count("n_head");
  c.ffn = in.count_or("n_inner", 4 * c.hidden);
  c.context = in.count("n_positions");
  if (c.hidden % c.heads != 0) in.bad("n_head", c.heads, "a divisor of n_embd = " + std::to_string(c.hidden));
  c.head_dim = c.hidden / c.heads;
  c.norm_eps = in.positive_or("layer_norm_epsilon", 1e-5);
  c.bias = true;
  c.tie_embeddings = in.flag_or("tie_word_embeddings", true);
  const json* activation = in.find("activation_function");
  if (activation && *activation != "gelu_new" && *activation != "gelu_pytorch_tanh") {
    in.refuse("activation_function", *activation, "this activation is not built; gelu_new (its tanh form) is");
  }
  in.only("scale_attn_weights", true, "attention without its scale is not built");
  in.only("scale_attn_by_inverse_layer_idx", false, "attention scaled by the layer's number is not built");
  in.only("reorder_and_upcast_attn", false, "reordered attention is not built");
  in.only("add_cross_attention", false, "cross attention is not built");
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) note_dropout(in, key, ignored);
}

void read_llama_like(ConfigReader& in, ModelConfig& c, const std::string& type, std::vector<std::string>* ignored) {
  c.layers = in.count("num_hidden_layers");
  c.hidden = in.count("hidden_size");
  c.ffn = in.count("intermediate_size");
  c.heads = in.count("num_attention_heads");
  // the defaults of these two are not the same in every family that shares the keys
  c.kv_heads = type == "llama" ? in.count_or("num_key_value_heads", c.heads) : in.count("num_key_value_heads");
  if (c.heads % c.kv_heads != 0) {
    in.bad("num_key_value_heads", c.kv_heads, "a divisor of num_attention_heads = " + std::to_string(c.heads));
  }
  if (const json* width = type == "qwen3" ? nullptr : in.find("head_dim"); type == "qwen3" || width) {
    c.head_dim = in.count("head_dim");
  } else {
    if (c.hidden % c.heads != 0) {
      in.bad("num_attention_heads", c.heads, "a divisor of hidden_size = " + std::to_string(c.hidden));
    }
    c.head_dim = c.hidden / c.heads;
  }
  if (c.head_dim % 2 != 0) in.bad("head_dim", c.head_dim, "an even number (rotary pairs)");
  c.context = in.count("max_position_embeddings");
  c.norm_eps = in.positive_or("rms_norm_eps", 1e-6);
  c.tie_embeddings = in.flag_or("tie_word_embeddings", false);
  read_rope(in, c, type == "qwen3", ignored);

  require_silu(in);
  const bool attention_bias = in.flag_or("attention_bias", false), mlp_bias = in.flag_or("mlp_bias", false);
  if (type == "llama") {
    if (attention_bias != mlp_bias) {
      in.refuse("attention_bias", attention_bias,
                std::string("with mlp_bias = ") + (mlp_bias ? "true" : "false") +
                    ", biases on some of the linear layers alone are not built; both or neither are");
    }
    c.bias = attention_bias;
  } else if (attention_bias || mlp_bias) {
    in.refuse(attention_bias ? "attention_bias" : "mlp_bias", true, "a " + type + " with biases is not built");
  }

  const json* window = in.find("sliding_window");
  if (type == "qwen3") {
    in.only("use_sliding_window", false, "sliding-window attention is not built");
  } else if (window) {
    in.refuse("sliding_window", *window, "sliding-window attention is not built; null is right");
  }
  if (const json* types = in.find("layer_types")) {
    if (!types->is_array()) in.bad("layer_types", *types, "a list");
    for (const json& t : *types) {
      if (t != "full_attention") in.refuse("layer_types", t, "this type of layer is not built; full_attention is");
    }
  }
  note_dropout(in, "attention_dropout", ignored);
  note_dropout(in, "hidden_dropout", ignored);
}

bool same(const ModelConfig& a, const ModelConfig& b) {
  auto key = [](const ModelConfig& c) {
    return std::tuple(c.family, c.layers, c.hidden, c.ffn, c.heads, c.kv_heads, c.head_dim, c.vocab, c.context,
                      c.norm_eps, c.tie_embeddings, c.bias, c.qkv_bias, c.init_std);
  };
  return key(a) == key(b) && same_mixture(a, b) && (a.family == "gpt2" || rope_block(a) == rope_block(b));
}

json gpt2_keys(const ModelConfig& c) {
  if (!c.bias || c.kv_heads != c.heads || c.head_dim * c.heads != c.hidden) {
    throw UsageError(
        "a gpt2 without biases, with kv_heads = " + std::to_string(c.kv_heads) + " of " + std::to_string(c.heads) +
        " heads, or with head_dim = " + std::to_string(c.head_dim) +
        " has no Hugging Face config.json; model.bias = true, kv_heads = heads, head_dim = hidden / heads do");
  }
  return {{"activation_function", "gelu_new"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"layer_norm_epsilon", c.norm_eps},
          {"n_embd", c.hidden},
          {"n_head", c.heads},
          {"n_inner", c.ffn == 4 * c.hidden ? json(nullptr) : json(c.ffn)},
          {"n_layer", c.layers},
          {"n_positions", c.context},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false},
          {"reorder_and_upcast_attn", false},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0}};
}

json llama_keys(const ModelConfig& c) {
  if (c.qkv_bias || (c.bias && c.family != "llama")) {
    throw UsageError(std::string("a ") + c.family + " with model." + (c.qkv_bias ? "qkv_bias" : "bias") +
                     " = true has no Hugging Face config.json");
  }
  json out = {{"architectures", {c.family == "qwen3" ? "Qwen3ForCausalLM" : "LlamaForCausalLM"}},
              {"attention_bias", c.bias},
              {"attention_dropout", 0.0},
              {"head_dim", c.head_dim},
              {"hidden_act", "silu"},
              {"hidden_size", c.hidden},
              {"intermediate_size", c.ffn},
              {"max_position_embeddings", c.context},
              {"num_attention_heads", c.heads},
              {"num_hidden_layers", c.layers},
              {"num_key_value_heads", c.kv_heads},
              {"rms_norm_eps", c.norm_eps},
              {"rope_parameters", rope_block(c)}};
  if (c.family == "llama") {
    out["mlp_bias"] = c.bias;
  } else {
    out["sliding_window"] = nullptr;
    out["use_sliding_window"] = false;
  }
  return out;
}

json family_keys(const ModelConfig& c) {
  if (c.family == "gpt2") return gpt2_keys(c);
  if (c.family == "llama" || c.family == "qwen3") return llama_keys(c);
  if (c.family == "mixtral") return mixtral_keys(c);
  if (c.family == "deepseek") return deepseek_keys(c);
  throw UsageError("model.family \"" + c.family +
                   "\" has no config.json; gpt2, llama, qwen3, mixtral and deepseek do");
}

}  // namespace

ModelConfig parse_hf_config(const std::string& text, const std::string& where,
                            std::vector<std::string>* ignored_keys) {
  const json object = parse_json_object(text, where);
  ConfigReader in(object, where);
  const std::string type = in.text("model_type");
  ModelConfig c;
  if (in.find("quantization_config"))
    throw UsageError(where + ": quantization_config: quantised weights cannot be read");
  c.vocab = in.count("vocab_size");
  c.init_std = in.positive_or("initializer_range", 0.02);
  if (type == "gpt2") {
    c.family = "gpt2";
    read_gpt2(in, c, ignored_keys);
  } else if (type == "llama" || type == "qwen3" || type == "mistral") {
    c.family = type == "qwen3" ? "qwen3" : "llama";
    // absent does not mean null here: the family's default is a window of 4096
    if (type == "mistral" && !object.contains("sliding_window")) {
      throw UsageError(where +
                       ": sliding_window is missing, which means 4096 for mistral: sliding-window attention is "
                       "not built; null is right");
    }
    read_llama_like(in, c, type, ignored_keys);
  } else if (type == "mixtral") {
    c.family = "mixtral";
    read_mixtral(in, c, ignored_keys);
  } else if (type == "deepseek_v3") {
    c.family = "deepseek";
    read_deepseek(in, c, ignored_keys);
  } else {
    throw UsageError(where + ": model_type \"" + type +
                     "\" is not a family of this build; gpt2, llama, qwen3, mixtral, deepseek_v3 and "
                     "mistral (without a sliding window) can be read");
  }
  in.report_rest(ignored_keys, harmless);
  return c;
}

ModelConfig read_hf_config(const std::string& folder, std::vector<std::string>* ignored_keys) {
  const std::string path = folder + "/config.json";
  return parse_hf_config(read_small_file(path), path, ignored_keys);
}

std::string write_hf_config(const ModelConfig& c, const std::string& dtype, const std::string& original) {
  static const std::pair<const char*, const char*> names[] = {
      {"F32", "float32"}, {"BF16", "bfloat16"}, {"F16", "float16"}, {"F64", "float64"}};
  std::string spelled;
  for (const auto& [ours, theirs] : names) {
    if (dtype == ours) spelled = theirs;
  }
  if (spelled.empty()) throw UsageError("dtype \"" + dtype + "\" cannot be written; F32, BF16, F16 or F64 can");
  json out = json::object();
  if (!original.empty()) {
    out = parse_json_object(original, "the config.json the model came with");
    const char* key = out.contains("dtype") ? "dtype" : "torch_dtype";
    // files of early versions name no type and hold float32
    if (out.value(key, json("float32")) == json(spelled) &&
        same(parse_hf_config(original, "config.json", nullptr), c)) {
      return original;
    }
    for (const char* gone : {"torch_dtype", "rope_theta", "rope_scaling", "layer_types", "num_local_experts"}) out.erase(gone);
  }
  json keys = family_keys(c);
  // the model's own dropout is no setting of ours: what it came with stays
  for (const char* dropout : {"attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout"}) {
    if (out.contains(dropout)) keys.erase(dropout);
  }
  out.update(keys);
  out["model_type"] = c.family == "deepseek" ? "deepseek_v3" : c.family;
  out["vocab_size"] = c.vocab;
  out["tie_word_embeddings"] = c.tie_embeddings;
  out["initializer_range"] = c.init_std;
  out["dtype"] = spelled;
  return out.dump(2) + "\n";
}

}  // namespace orthant
