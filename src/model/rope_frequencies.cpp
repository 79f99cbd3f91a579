// f_i = theta^(-2i / d), then stretched:
//   linear  f / factor
//   llama3  by wavelength w = 2 pi / f against the original context C: w < C / high keeps f, w > C / low takes
//           f / factor, between them a blend with weight (C / w - low) / (high - low) on f
//   yarn    by dim i: a ramp from f (dims that turn more than beta_fast times in C) to f / factor (fewer than
//           beta_slow times); cos and sin x 0.1 ln(factor) + 1
// Source: transformers, modeling_rope_utils.py (which works in float32; here everything is double).
#include "model/rope_frequencies.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "orthant/error.hpp"

namespace orthant {

namespace {

void need(bool holds, const char* key, double value, const char* right) {
  if (!holds)
    throw UsageError("model." + std::string(key) + " = " + std::to_string(value) + "; " + right + " is right");
}

double attention_scale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void stretch_llama3(const RopeScaling& r, std::vector<double>& f) {
  need(r.original_context > 0, "rope.original_context", static_cast<double>(r.original_context), "a positive number");
  need(r.low_freq_factor > 0, "rope.low_freq_factor", r.low_freq_factor, "a positive number");
  need(r.high_freq_factor > r.low_freq_factor, "rope.high_freq_factor", r.high_freq_factor,
       "a number above rope.low_freq_factor");
  const double context = static_cast<double>(r.original_context);
  for (double& x : f) {
    const double wavelength = 2 * std::numbers::pi / x;
    if (wavelength < context / r.high_freq_factor) continue;
    if (wavelength > context / r.low_freq_factor) {
      x /= r.factor;
    } else {
      const double keep = (context / wavelength - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
      x = (1 - keep) * x / r.factor + keep * x;
    }
  }
}

void stretch_yarn(const RopeScaling& r, double theta, int64_t width, RopeTable& table) {
  need(r.original_context > 0, "rope.original_context", static_cast<double>(r.original_context), "a positive number");
  need(r.beta_slow > 0, "rope.beta_slow", r.beta_slow, "a positive number");
  need(r.beta_fast >= r.beta_slow, "rope.beta_fast", r.beta_fast, "a number not below rope.beta_slow");
  need(theta > 1, "rope_theta", theta, "a number above 1");
  // the dim (as a real number) whose pair turns `turns` times over the original context
  auto dim_of = [&](double turns) {
    return static_cast<double>(width) *
           std::log(static_cast<double>(r.original_context) / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  const double low = std::max(std::floor(dim_of(r.beta_fast)), 0.0);
  double high = std::min(std::ceil(dim_of(r.beta_slow)), static_cast<double>(width - 1));
  if (high == low) high += 0.001;  // a step instead of a ramp, as the reference has it
  for (size_t i = 0; i < table.inverse_frequencies.size(); ++i) {
    double& x = table.inverse_frequencies[i];
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    x = x / r.factor * ramp + x * (1 - ramp);
  }
  if (r.attention_factor != 0) {
    table.attention_factor = r.attention_factor;
  } else if (r.mscale != 0 && r.mscale_all_dim != 0) {
    table.attention_factor = attention_scale(r.factor, r.mscale) / attention_scale(r.factor, r.mscale_all_dim);
  } else {
    table.attention_factor = attention_scale(r.factor, 1);
  }
}

}  // namespace

RopeTable rope_frequencies(const ModelConfig& c) {
  need(c.head_dim > 0 && c.head_dim % 2 == 0, "head_dim", static_cast<double>(c.head_dim), "a positive even number");
  need(c.rope_theta > 0, "rope_theta", c.rope_theta, "a positive number");
  RopeTable table;
  for (int64_t i = 0; i < c.head_dim / 2; ++i) {
    table.inverse_frequencies.push_back(
        std::pow(c.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim)));
  }
  const RopeScaling& r = c.rope;
  if (r.type == "default") return table;
  if (r.type != "linear" && r.type != "llama3" && r.type != "yarn") {
    throw UsageError("model.rope.type = \"" + r.type + "\" is not built; default, linear, llama3 and yarn are");
  }
  need(r.factor > 0, "rope.factor", r.factor, "a positive number");
  if (r.type == "linear") {
    for (double& x : table.inverse_frequencies) x /= r.factor;
  } else if (r.type == "llama3") {
    stretch_llama3(r, table.inverse_frequencies);
  } else {
    stretch_yarn(r, c.rope_theta, c.head_dim, table);
  }
  return table;
}

double latent_attention_scale(const ModelConfig& c) {
  const double scale = 1 / std::sqrt(static_cast<double>(c.mla.qk_dim()));
  if (c.rope.type != "yarn" || c.rope.mscale_all_dim == 0) return scale;
  const double m = attention_scale(c.rope.factor, c.rope.mscale_all_dim);
  return scale * m * m;
}

}  // namespace orthant
