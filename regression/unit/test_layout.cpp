// Pieces of parameters and the axes their gradients are summed over, as the Param records imply them.
// labels: smoke
#include <gtest/gtest.h>

#include "mesh_kit.hpp"
#include "orthant/model.hpp"

namespace orthant {
namespace {

using namespace kit;

constexpr auto tp = AxisName::tp, cp = AxisName::cp, dp = AxisName::dp, rep = AxisName::tp_rep;
using AxisList = std::vector<AxisName>;

TEST(Layout, PiecesCoverEachParameterOnce) {
  for (const char* family : {"gpt2", "llama", "qwen3", "mixtral", "deepseek"})
    for (int64_t vocab : {65, 257})
      for (int64_t ranks : {1, 2, 4, 8})
        for (int64_t data : {1, 2}) {
          const ModelConfig c = small_model(family, vocab, 8);
          const MeshShape shape = mesh_of(c, ranks, data);
          for (const Param& p : model_params(c)) {
            std::vector<int> counted(static_cast<size_t>(p.elements())), written(counted), held(counted);
            for (int64_t r = 0; r < shape.ranks(); ++r) {
              const Layout layout(shape, coordinates_of(shape, r), false, false);
              const Piece piece = layout.piece(p);
              for (int64_t i = piece.row; i < piece.row + piece.rows; ++i)
                for (int64_t j = piece.col; j < piece.col + piece.cols; ++j) {
                  const auto e = static_cast<size_t>(i * p.cols() + j);
                  ASSERT_LT(e, held.size()) << p.name;
                  held[e] += 1;
                  counted[e] += layout.counted(p);
                  written[e] += layout.writes(p);
                }
            }
            const std::vector<int> one(counted.size(), 1),
                once_a_replica(counted.size(), p.trained ? static_cast<int>(data) : 0);
            EXPECT_EQ(written, one) << family << " " << p.name << " tp " << ranks;
            EXPECT_EQ(counted, once_a_replica) << family << " " << p.name << " tp " << ranks;
            for (int h : held) ASSERT_EQ(h % data, 0);
          }
        }
}

TEST(Layout, VocabularyIsCutInSixteenthsOfItsBlocks) {
  EXPECT_EQ(vocab_range(257, 2, 0).size, 136);
  EXPECT_EQ(vocab_range(257, 2, 1).size, 121);
  EXPECT_EQ(vocab_range(257, 2, 1).begin, 136);
  EXPECT_EQ(vocab_block(257), 17);
  EXPECT_EQ(vocab_range(65, 8, 7).size, 0);  // an empty shard is legal
  for (int64_t vocab : {1, 15, 16, 17, 65, 257, 50257, 128256, 151936})
    for (int64_t parts : {1, 2, 3, 4, 8, 16, 17, 32, 100}) {
      int64_t at = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const Range r = vocab_range(vocab, parts, i);
        ASSERT_EQ(r.begin, at) << vocab << " on " << parts;
        ASSERT_GE(r.size, 0);
        at += r.size;
        if (parts > 16) continue;
        ASSERT_TRUE(r.begin % vocab_block(vocab) == 0 || r.begin == vocab);  // meshes share edges
      }
      ASSERT_EQ(at, vocab) << parts;
    }
}

// O009
TEST(Layout, RanksOfAQueryGroupHoldItsKvHead) {
  MeshShape shape;
  shape.tp = 4;
  shape.kv_heads = 2;
  for (int64_t r = 0; r < 4; ++r) {
    const Layout layout(shape, coordinates_of(shape, r), false, false);
    EXPECT_EQ(layout.kv_heads(2).begin, r / 2);
    EXPECT_EQ(layout.kv_heads(2).size, 1);
    EXPECT_EQ(layout.heads(8).begin, 2 * r);  // query heads 0..3 read kv head 0
    EXPECT_EQ(layout.heads(8).size, 2);
    EXPECT_EQ(layout.kv_heads(8).begin, 2 * r);
    EXPECT_EQ(layout.kv_heads(1).begin, 0);
  }
}

Param expert_of(int64_t e) {
  Param p;
  p.name = "experts." + std::to_string(e);
  p.dims = {{DimName::expert_ffn, 6, 1}, {DimName::hidden, 4, 1}};
  p.contracted = over_all_tokens;
  p.expert = e;
  return p;
}

// etp 1 or tp, ep inside or across tp: each element of each expert is counted once in each copy and written once
TEST(Layout, ExpertsAreCutByEpAndEtp) {
  for (int64_t tp : {1, 2})
    for (int64_t cp : {1, 2})
      for (int64_t dp : {1, 2, 4})
        for (int64_t etp : {int64_t{1}, tp})
          for (int64_t ep : {1, 2, 4, 8}) {
            MeshShape s;
            s.tp = tp, s.cp = cp, s.dp = dp, s.etp = etp, s.ep = ep, s.experts = 8;
            if ((etp > 1 ? cp * dp : tp * cp * dp) % ep != 0) continue;
            for (int64_t e = 0; e < 8; ++e) {
              const Param p = expert_of(e);
              int64_t held = 0, counted = 0, written = 0;
              for (int64_t r = 0; r < s.ranks(); ++r) {
                const Layout layout(s, coordinates_of(s, r), tp > 1, false);
                const int64_t n = layout.piece(p).elements();
                EXPECT_EQ(n > 0, layout.holds(p));
                held += n;
                counted += layout.counted(p) ? n : 0;
                written += layout.writes(p) ? n : 0;
                EXPECT_EQ(layout.sum_axes(p), (AxisList{AxisName::edp_shard, AxisName::edp_replica}));
              }
              EXPECT_EQ(written, p.elements());
              EXPECT_EQ(held, p.elements() * s.expert_data());
              EXPECT_EQ(counted, held);
            }
          }
}

TEST(Layout, WhatIsNotCutIsWholeEverywhereAndSummedByNoOneOverTp) {
  const ModelConfig c = small_model("qwen3");
  MeshShape s = mesh_of(c, 4, 1);
  s.cut_heads = s.cut_ffn = s.cut_vocab = false;
  EXPECT_EQ(s.kv_group(), 1);
  for (bool sp : {false, true})
    for (const Param& p : model_params(c)) {
      int writes = 0;
      for (int64_t r = 0; r < s.ranks(); ++r) {
        const Layout layout(s, coordinates_of(s, r), sp, false);
        EXPECT_EQ(layout.piece(p).elements(), p.elements()) << p.name;
        const bool shard = sp && (p.contracted & over_tokens);  // norms work on the token shard as ever
        EXPECT_EQ(layout.sum_axes(p), shard ? (AxisList{tp, cp, dp}) : (AxisList{cp, dp})) << p.name;
        writes += layout.writes(p);
      }
      EXPECT_EQ(writes, 1) << p.name;
    }
}

AxisList sums(const ModelConfig& c, const std::string& name, int64_t ranks, bool sp, bool reproducible) {
  const MeshShape shape = mesh_of(c, ranks, 1);
  for (const Param& p : model_params(c))
    if (p.name == name) return Layout(shape, {}, sp, reproducible).sum_axes(p);
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

TEST(Layout, GradientsAreSummedOverWhatCutsTheirContraction) {
  struct Row {
    const char* family;
    const char* name;
    AxisList off, on;  ///< sequence parallelism; tp 4, kv heads 2 (gpt2: 4)
  };
  const AxisList data = {cp, dp}, all = {tp, cp, dp}, shared = {rep, cp, dp},
                 experts = {AxisName::edp_shard, AxisName::edp_replica};
  const Row rows[] = {
      {"gpt2", "layers.0.norm1.weight", data, all},
      {"gpt2", "layers.1.norm2.bias", data, all},
      {"gpt2", "final_norm.weight", data, all},
      {"gpt2", "final_norm.bias", data, all},
      {"gpt2", "layers.0.attention.q.bias", data, data},
      {"gpt2", "layers.0.attention.k.bias", data, data},
      {"gpt2", "layers.0.attention.out.bias", data, all},
      {"gpt2", "layers.0.attention.out.weight", data, data},
      {"gpt2", "layers.0.mlp.up.bias", data, data},
      {"gpt2", "layers.0.mlp.down.bias", data, all},
      {"gpt2", "embedding.tokens.weight", data, data},
      {"gpt2", "embedding.positions.weight", data, all},
      {"llama", "layers.0.norm1.weight", data, all},
      {"llama", "layers.0.attention.q.weight", data, data},
      {"llama", "layers.0.attention.k.weight", shared, shared},
      {"llama", "layers.0.attention.v.weight", shared, shared},
      {"llama", "layers.0.attention.k.bias", shared, shared},
      {"llama", "layers.1.mlp.gate.weight", data, data},
      {"llama", "layers.1.mlp.down.weight", data, data},
      {"llama", "head.weight", data, data},
      {"qwen3", "layers.0.attention.q_norm.weight", all, all},
      {"qwen3", "layers.0.attention.k_norm.weight", all, all},
      // O004, O005: routers and latents work on the token shard; mesh_of cuts experts by etp = tp
      {"mixtral", "layers.0.moe.router.weight", data, all},
      {"mixtral", "layers.1.moe.experts.3.gate.weight", experts, experts},
      {"mixtral", "layers.1.moe.experts.3.down.weight", experts, experts},
      {"deepseek", "layers.1.moe.router.weight", data, all},
      {"deepseek", "layers.1.moe.router.bias", {}, {}},
      {"deepseek", "layers.1.moe.experts.7.up.weight", experts, experts},
      {"deepseek", "layers.1.moe.shared.up.weight", data, data},
      {"deepseek", "layers.0.attention.q_a.weight", data, all},
      {"deepseek", "layers.0.attention.q_a_norm.weight", data, all},
      {"deepseek", "layers.0.attention.q_b.weight", data, data},
      {"deepseek", "layers.0.attention.kv_a.weight", data, all},
      {"deepseek", "layers.0.attention.kv_b.weight", data, data},
      {"deepseek", "layers.0.attention.out.weight", data, data},
  };
  for (const Row& r : rows) {
    const ModelConfig c = small_model(r.family);
    EXPECT_EQ(sums(c, r.name, 4, false, false), r.off) << r.family << " " << r.name;
    EXPECT_EQ(sums(c, r.name, 4, true, false), r.on) << r.family << " " << r.name << ", sequence parallel";
    // reproducible mode sums the query heads of a kv head before the weight product
    EXPECT_EQ(sums(c, r.name, 4, false, true), r.off == shared ? data : r.off)
        << r.family << " " << r.name << ", reproducible";
    EXPECT_EQ(sums(c, r.name, 4, true, true), r.on == shared ? data : r.on)
        << r.family << " " << r.name << ", reproducible, sequence parallel";
  }
  // with a kv head or more on each rank nothing is shared
  EXPECT_EQ(sums(small_model("llama"), "layers.0.attention.k.weight", 2, true, false), data);
}

TEST(Layout, OneRankOfThoseThatShareAPieceCountsIt) {
  const ModelConfig c = small_model("llama");
  const MeshShape shape = mesh_of(c, 4, 2);
  for (const Param& p : model_params(c)) {
    int counts = 0, writes = 0;
    for (int64_t r = 0; r < shape.ranks(); ++r) {
      const Layout layout(shape, coordinates_of(shape, r), true, false);
      counts += layout.counted(p);
      writes += layout.writes(p);
    }
    const bool norm = p.name.find("norm") != std::string::npos,
               kv = p.name.find(".k.") != std::string::npos || p.name.find(".v.") != std::string::npos;
    EXPECT_EQ(writes, norm ? 1 : kv ? 2 : 4) << p.name;
    EXPECT_EQ(counts, 2 * writes) << p.name;
  }
}

}  // namespace
}  // namespace orthant
