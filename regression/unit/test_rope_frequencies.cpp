// Rotary frequencies against closed numbers.
// labels: smoke
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "model/rope_frequencies.hpp"
#include "orthant/error.hpp"

using namespace orthant;

namespace {

ModelConfig config(int64_t head_dim, double theta, RopeScaling rope = {}) {
  ModelConfig c;
  c.family = "llama";
  c.head_dim = head_dim;
  c.rope_theta = theta;
  c.rope = std::move(rope);
  return c;
}

}  // namespace

TEST(RopeFrequencies, DefaultAndLinear) {
  const RopeTable plain = rope_frequencies(config(8, 10000));
  const double expected[] = {1, 0.1, 0.01, 0.001};
  ASSERT_EQ(plain.inverse_frequencies.size(), 4u);
  RopeScaling linear;
  linear.type = "linear";
  linear.factor = 4;
  const RopeTable stretched = rope_frequencies(config(8, 10000, linear));
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(plain.inverse_frequencies[i], expected[i], 1e-15);
    EXPECT_NEAR(stretched.inverse_frequencies[i], expected[i] / 4, 1e-15);
  }
  EXPECT_EQ(plain.attention_factor, 1);
  EXPECT_EQ(stretched.attention_factor, 1);
}

// case O019
TEST(RopeFrequencies, Llama3) {
  RopeScaling r;
  r.type = "llama3";
  r.factor = 8;
  r.low_freq_factor = 1;
  r.high_freq_factor = 4;
  r.original_context = 8192;
  const auto f = rope_frequencies(config(8, 500000, r)).inverse_frequencies;
  EXPECT_EQ(f[0], 1);
  EXPECT_NEAR(f[1], 0.037606, 5e-7);
  EXPECT_NEAR(f[2], 0.000524846, 5e-10);
  EXPECT_NEAR(f[3], 6.64787e-06, 5e-12);
  const auto plain = rope_frequencies(config(8, 500000)).inverse_frequencies;
  EXPECT_NEAR(plain[2], 0.00141421, 5e-9);
  EXPECT_NEAR(plain[3], 5.3183e-05, 5e-10);
}

TEST(RopeFrequencies, Yarn) {
  // head_dim 64, theta 10000, original 2048, turns 32 and 1: dims 32 ln(2048 / (2 pi n)) / ln 10000 = 8.06 and 20.10,
  // so the ramp runs from 8 to 21
  RopeScaling r;
  r.type = "yarn";
  r.factor = 4;
  r.original_context = 2048;
  const RopeTable t = rope_frequencies(config(64, 10000, r));
  for (int i = 0; i < 32; ++i) {
    const double plain = std::pow(10.0, -i / 8.0);
    const double ramp = i <= 8 ? 0 : i >= 21 ? 1 : (i - 8) / 13.0;
    EXPECT_NEAR(t.inverse_frequencies[i], plain * (1 - ramp) + plain / 4 * ramp, 1e-15) << i;
  }
  EXPECT_NEAR(t.attention_factor, 0.1 * std::numbers::ln2 * 2 + 1, 1e-15);
  r.mscale = 1;
  EXPECT_NEAR(rope_frequencies(config(64, 10000, r)).attention_factor, 0.1 * std::log(4) + 1, 1e-15);
  r.mscale_all_dim = 0.5;
  EXPECT_NEAR(rope_frequencies(config(64, 10000, r)).attention_factor,
              (0.1 * std::log(4) + 1) / (0.05 * std::log(4) + 1), 1e-15);
  r.attention_factor = 0.75;
  EXPECT_EQ(rope_frequencies(config(64, 10000, r)).attention_factor, 0.75);
  r = {};
  r.type = "yarn";
  r.factor = 0.5;  // no stretch: no scale of the attention
  r.original_context = 2048;
  EXPECT_EQ(rope_frequencies(config(64, 10000, r)).attention_factor, 1);
}

TEST(RopeFrequencies, YarnRampOfNoWidth) {
  RopeScaling r;
  r.type = "yarn";
  r.factor = 2;
  r.original_context = 1;  // fewer than one turn at any dim: the range clamps to dim 0 on both ends
  const auto f = rope_frequencies(config(8, 10000, r)).inverse_frequencies;
  EXPECT_EQ(f[0], 1);
  for (int i = 1; i < 4; ++i) EXPECT_NEAR(f[i], std::pow(10.0, -i) / 2, 1e-16);
}

// case O019: an unknown type is refused by name
TEST(RopeFrequencies, Refusals) {
  RopeScaling r;
  r.type = "longrope";
  try {
    rope_frequencies(config(8, 10000, r));
    ADD_FAILURE() << "an unknown type was accepted";
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("longrope"), std::string::npos) << e.what();
  }
  EXPECT_THROW(rope_frequencies(config(7, 10000)), UsageError);
  EXPECT_THROW(rope_frequencies(config(8, 0)), UsageError);
  for (const char* type : {"llama3", "yarn"}) {
    r = {};
    r.type = type;
    r.factor = 8;  // original_context is not set
    EXPECT_THROW(rope_frequencies(config(8, 10000, r)), UsageError) << type;
  }
}

// 24 wide: 24^-0.5 = 0.204124145; factor 40 with mscale_all_dim 1: (0.1 ln 40 + 1)^2 = 1.368887945^2 = 1.873854206
TEST(RopeFrequencies, ScaleOfLatentAttention) {
  ModelConfig c = config(8, 10000);
  c.family = "deepseek";
  c.mla = {.q_lora_rank = 48, .kv_lora_rank = 32, .nope_dim = 16, .rope_dim = 8, .v_dim = 16};
  EXPECT_NEAR(latent_attention_scale(c), 0.204124145, 1e-9);
  c.rope.type = "yarn";
  c.rope.factor = 40;
  c.rope.original_context = 4096;
  EXPECT_NEAR(latent_attention_scale(c), 0.204124145, 1e-9);  // mscale_all_dim is not set
  c.rope.mscale = c.rope.mscale_all_dim = 1;
  EXPECT_NEAR(latent_attention_scale(c), 0.204124145 * 1.873854206, 1e-8);
  EXPECT_EQ(rope_frequencies(c).attention_factor, 1);  // m(mscale) / m(mscale_all_dim)
  c.rope.mscale_all_dim = 0.5;
  EXPECT_NEAR(latent_attention_scale(c), 0.204124145 * 1.184443973 * 1.184443973, 1e-8);
  EXPECT_NEAR(rope_frequencies(c).attention_factor, 1.368887945 / 1.184443973, 1e-8);
  c.rope.factor = 1;
  EXPECT_NEAR(latent_attention_scale(c), 0.204124145, 1e-9);
}
