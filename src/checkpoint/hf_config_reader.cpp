// See hf_config_reader.hpp.
#include "checkpoint/hf_config_reader.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "orthant/error.hpp"

namespace orthant {

using json = nlohmann::json;

namespace {

std::string shown(const json& value) {
  const std::string text = value.dump();
  return text.size() <= 100 ? text : text.substr(0, 97) + "...";
}

std::string whole_number_from(int64_t least) { return "a whole number from " + std::to_string(least); }

// The scaling block, however it is spelled. `block` holds rope_type (or type) and the numbers of that type.
RopeScaling read_scaling(ConfigReader& in, int64_t context) {
  RopeScaling rope;
  const json *modern = in.find("rope_type"), *old = in.find("type");
  if (modern && old && *modern != *old) in.bad("type", *old, "the same as rope_type");
  const json* type = modern ? modern : old;
  if (type && !type->is_string()) in.bad("rope_type", *type, "a string");
  rope.type = type ? type->get<std::string>() : "default";
  if (const json* v = in.find("partial_rotary_factor"); v && *v != 1) {
    in.refuse("partial_rotary_factor", *v, "rotary positions on a part of each head are not built");
  }
  if (rope.type == "default") return rope;
  if (rope.type != "linear" && rope.type != "llama3" && rope.type != "yarn") {
    in.refuse("rope_type", *type, "this rotary type is not built; default, linear, llama3 and yarn are");
  }
  rope.factor = in.positive("factor");
  if (rope.type == "llama3") {
    rope.low_freq_factor = in.positive("low_freq_factor");
    rope.high_freq_factor = in.positive("high_freq_factor");
    rope.original_context = in.count("original_max_position_embeddings");
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      in.bad("high_freq_factor", rope.high_freq_factor, "a number above low_freq_factor");
    }
  } else if (rope.type == "yarn") {
    rope.original_context = in.count_or("original_max_position_embeddings", context);
    rope.beta_fast = in.positive_or("beta_fast", 32);
    rope.beta_slow = in.positive_or("beta_slow", 1);
    // zero and null both mean "not set" in the reference implementation
    for (auto [key, to] : {std::pair{"mscale", &rope.mscale}, std::pair{"mscale_all_dim", &rope.mscale_all_dim}}) {
      const json* v = in.find(key);
      if (v && *v != 0) *to = in.positive(key);
    }
    rope.attention_factor = in.positive_or("attention_factor", 0);
    in.only("truncate", true, "a yarn range that is not rounded is not built");
  } else {
    in.find("original_max_position_embeddings");  // linear scaling does not use it
  }
  return rope;
}

}  // namespace

const json* ConfigReader::find(const std::string& key) {
  seen_.insert(key);
  const auto at = object_.find(key);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

bool ConfigReader::contains(const std::string& key) const { return object_.contains(key); }

int64_t ConfigReader::count(const std::string& key, int64_t least) {
  return count_of(require(key, whole_number_from(least)), key, least);
}

int64_t ConfigReader::count_or(const std::string& key, int64_t otherwise, int64_t least) {
  const json* v = find(key);
  return v ? count_of(*v, key, least) : otherwise;
}

double ConfigReader::positive(const std::string& key) { return positive_of(require(key, "a positive number"), key); }

double ConfigReader::positive_or(const std::string& key, double otherwise) {
  const json* v = find(key);
  return v ? positive_of(*v, key) : otherwise;
}

bool ConfigReader::flag(const std::string& key) {
  require(key, "true or false");
  return flag_or(key, false);
}

bool ConfigReader::flag_or(const std::string& key, bool otherwise) {
  const json* v = find(key);
  if (!v) return otherwise;
  if (!v->is_boolean()) bad(key, *v, "true or false");
  return v->get<bool>();
}

std::string ConfigReader::text(const std::string& key) {
  const json& v = require(key, "a string");
  if (!v.is_string()) bad(key, v, "a string");
  return v.get<std::string>();
}

void ConfigReader::only(const std::string& key, bool allowed, const std::string& why) {
  if (flag_or(key, allowed) != allowed) refuse(key, !allowed, why);
}

void ConfigReader::agrees(const std::string& key, int64_t right, const std::string& same_as) {
  const json* v = find(key);
  if (v && *v != right) bad(key, *v, std::to_string(right) + " (" + same_as + ")");
}

void ConfigReader::only_value(const std::string& key, const json& allowed, const std::string& why) {
  const json* v = find(key);
  if (v && *v != allowed) refuse(key, *v, why + "; " + shown(allowed) + " is");
}

void ConfigReader::list(const std::string& key, const json& silent, const std::string& why,
                        std::vector<std::string>* ignored) {
  const json* v = find(key);
  if (v && *v != silent && ignored) ignored->push_back(inside_ + key + " = " + shown(*v) + " (" + why + ")");
}

void ConfigReader::report_rest(std::vector<std::string>* out, const std::set<std::string>& passed_over) const {
  if (!out) return;
  for (const auto& [key, value] : object_.items()) {
    if (!seen_.count(key) && !passed_over.count(key)) out->push_back(inside_ + key + " = " + shown(value));
  }
}

void ConfigReader::missing(const std::string& key, const std::string& right) const {
  throw DataError(where_ + ": " + inside_ + key + " is missing; " + right + " is right");
}

void ConfigReader::bad(const std::string& key, const json& value, const std::string& right) const {
  throw DataError(where_ + ": " + inside_ + key + " = " + shown(value) + "; " + right + " is right");
}

void ConfigReader::refuse(const std::string& key, const json& value, const std::string& why) const {
  throw UsageError(where_ + ": " + inside_ + key + " = " + shown(value) + ": " + why);
}

const json& ConfigReader::require(const std::string& key, const std::string& right) {
  const json* v = find(key);
  if (!v) missing(key, right);
  return *v;
}

int64_t ConfigReader::count_of(const json& v, const std::string& key, int64_t least) const {
  // 2^40 is beyond any size of a model
  if (!v.is_number_integer() || v.get<int64_t>() < least || v.get<int64_t>() > (int64_t{1} << 40)) {
    bad(key, v, whole_number_from(least));
  }
  return v.get<int64_t>();
}

double ConfigReader::positive_of(const json& v, const std::string& key) const {
  if (!v.is_number() || !(v.get<double>() > 0) || !std::isfinite(v.get<double>())) bad(key, v, "a positive number");
  return v.get<double>();
}

void note_dropout(ConfigReader& in, const char* key, std::vector<std::string>* ignored) {
  const json* v = in.find(key);
  if (!v) return;
  if (!v->is_number()) in.bad(key, *v, "a number");
  if (v->get<double>() != 0 && ignored)
    ignored->push_back(key + (" = " + v->dump()) + " (set model.dropout in the deck)");
}

void require_silu(ConfigReader& in) {
  const json* activation = in.find("hidden_act");
  if (activation && *activation != "silu" && *activation != "swish") {
    in.refuse("hidden_act", *activation, "this activation is not built; silu is");
  }
}

void read_rope(ConfigReader& in, ModelConfig& c, bool theta_required, std::vector<std::string>* ignored) {
  const json* theta = in.find("rope_theta");
  if (theta) c.rope_theta = in.positive("rope_theta");
  const json *modern = in.find("rope_parameters"), *old = in.find("rope_scaling");
  for (auto [key, block] : {std::pair{"rope_parameters", modern}, std::pair{"rope_scaling", old}}) {
    if (!block) continue;
    if (!block->is_object()) in.bad(key, *block, "an object or null");
    for (const auto& [name, value] : block->items()) {
      if (value.is_object()) in.refuse(key, *block, "rotary settings for each type of layer are not built");
    }
    ConfigReader inner(*block, in.where(), std::string(key) + ".");
    const RopeScaling scaling = read_scaling(inner, c.context);
    if (block == old && modern) {
      if (scaling.type != c.rope.type || scaling.factor != c.rope.factor) {
        in.bad(key, *block, "the same as rope_parameters");
      }
    }
    if (!(block == old && modern)) c.rope = scaling;
    if (inner.find("rope_theta")) {
      const double value = inner.positive("rope_theta");
      if (theta && value != c.rope_theta)
        in.bad("rope_theta", *theta, std::string("the same as ") + key + ".rope_theta");
      c.rope_theta = value;
      theta = &block->at("rope_theta");
    }
    inner.report_rest(ignored, {});
  }
  if (!theta && theta_required) {
    throw DataError(in.where() + ": rope_theta is missing (here and in rope_parameters); a positive number is right");
  }
  if (const json* v = in.find("partial_rotary_factor"); v && *v != 1) {
    in.refuse("partial_rotary_factor", *v, "rotary positions on a part of each head are not built");
  }
}

json rope_block(const ModelConfig& c) {
  json rope = {{"rope_theta", c.rope_theta}, {"rope_type", c.rope.type}};
  const RopeScaling& r = c.rope;
  if (r.type == "default") return rope;
  rope["factor"] = r.factor;
  if (r.type == "llama3") {
    rope["low_freq_factor"] = r.low_freq_factor;
    rope["high_freq_factor"] = r.high_freq_factor;
    rope["original_max_position_embeddings"] = r.original_context;
  } else if (r.type == "yarn") {
    rope["original_max_position_embeddings"] = r.original_context ? r.original_context : c.context;
    rope["beta_fast"] = r.beta_fast;
    rope["beta_slow"] = r.beta_slow;
    if (r.mscale != 0) rope["mscale"] = r.mscale;
    if (r.mscale_all_dim != 0) rope["mscale_all_dim"] = r.mscale_all_dim;
    if (r.attention_factor != 0) rope["attention_factor"] = r.attention_factor;
  } else if (r.type != "linear") {
    throw UsageError("model.rope.type \"" + r.type + "\" cannot be written to a config.json");
  }
  return rope;
}

}  // namespace orthant
