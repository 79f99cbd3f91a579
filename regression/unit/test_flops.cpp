// Floating-point operations a token costs, against sums written out by hand.
// labels: smoke
// seconds: 30
#include <gtest/gtest.h>

#include "train/console.hpp"

namespace orthant {
namespace {

ModelConfig config(const std::string& family) {
  ModelConfig c;
  c.family = family;
  c.layers = 3, c.hidden = 10, c.ffn = 30, c.heads = 2, c.kv_heads = 1, c.head_dim = 6, c.vocab = 100;
  return c;
}

TEST(Flops, DenseFamilies) {
  // projections 10 x (12 + 6 + 6) + 12 x 10, two products of 12 over 8 / 2 keys each, head 10 x 100
  const double attention = 240 + 120 + 96;
  EXPECT_EQ(flops_per_token(config("llama"), 8), 6 * (3 * (attention + 3 * 300) + 1000));
  EXPECT_EQ(flops_per_token(config("gpt2"), 8), 6 * (3 * (attention + 2 * 300) + 1000));
}

TEST(Flops, OnlyTheExpertsATokenSees) {
  ModelConfig c = config("mixtral");
  c.moe = {.experts = 8, .top_k = 2, .ffn = 20};
  const double attention = 240 + 120 + 96, mixture = 80 + 2 * 3 * 200;  // router 10 x 8, two experts of 10 x 20 x 3
  EXPECT_EQ(flops_per_token(c, 8), 6 * (3 * (attention + mixture) + 1000));
}

TEST(Flops, LatentAttentionAndSharedExperts) {
  ModelConfig c = config("deepseek");
  c.kv_heads = 2;
  c.moe = {.experts = 8, .top_k = 2, .ffn = 20, .shared_experts = 3, .first_dense_layers = 1};
  c.mla = {.q_lora_rank = 7, .kv_lora_rank = 5, .nope_dim = 4, .rope_dim = 2, .v_dim = 3};
  // q_a 10 x 7, q_b 7 x 12, kv_a 10 x (5 + 2), kv_b 5 x 2 x (4 + 3), out 6 x 10; core 2 x (6 + 3) x 8 / 2
  const double latent = 70 + 84 + 70 + 70 + 60 + 72, mixture = 80 + (2 + 3) * 3 * 200, dense = 3 * 300;
  EXPECT_EQ(flops_per_token(c, 8), 6 * (3 * latent + 2 * mixture + dense + 1000));
  c.mla.q_lora_rank = 0;  // one matrix 10 x 12 in place of the two
  EXPECT_EQ(flops_per_token(c, 8), 6 * (3 * (latent - 154 + 120) + 2 * mixture + dense + 1000));
}

}  // namespace
}  // namespace orthant
