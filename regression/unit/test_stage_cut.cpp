// Blocks of each virtual stage, and the parameters of the units that follow.
// ranks: 1
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "mesh_kit.hpp"
#include "model/stage_cut.hpp"
#include "orthant/model.hpp"

namespace orthant {
namespace {

using Sizes = std::vector<int64_t>;

Sizes blocks(int64_t layers, int64_t virtual_stages, const Sizes& given = {}) {
  Sizes out;
  for (const ChunkRange& r : stage_cut(layers, virtual_stages, given)) out.push_back(r.layers);
  return out;
}

// O024
TEST(StageCut, EveryBlockOnceForEveryNumberOfStages) {
  for (int64_t layers = 1; layers <= 40; ++layers)
    for (int64_t n = 1; n <= layers + 2; ++n) {
      const std::vector<ChunkRange> cut = stage_cut(layers, n);
      ASSERT_EQ(static_cast<int64_t>(cut.size()), n);
      int64_t at = 0, least = layers + 2, most = 0;
      for (int64_t s = 0; s < n; ++s) {
        const ChunkRange& r = cut[static_cast<size_t>(s)];
        ASSERT_EQ(r.first_layer, at) << layers << " on " << n;
        ASSERT_GE(r.layers, 0) << layers << " on " << n;
        ASSERT_GE(r.units(), 1) << layers << " on " << n << ": nothing on stage " << s;
        ASSERT_EQ(r.embedding, s == 0);
        ASSERT_EQ(r.head, s == n - 1);
        at += r.layers;
        const int64_t size = layers % n == 0 ? r.layers : r.units();
        least = std::min(least, size);
        most = std::max(most, size);
      }
      ASSERT_EQ(at, layers) << layers << " on " << n;
      ASSERT_LE(most - least, layers % n == 0 ? 0 : 1) << layers << " on " << n;
    }
}

// O024
TEST(StageCut, KnownCuts) {
  EXPECT_EQ(blocks(16, 4), (Sizes{4, 4, 4, 4}));
  EXPECT_EQ(blocks(5, 1), (Sizes{5}));
  EXPECT_EQ(blocks(5, 2), (Sizes{3, 2}));  // 7 pieces: embedding and 3, 2 and head
  EXPECT_EQ(blocks(7, 4), (Sizes{2, 2, 2, 1}));
  EXPECT_EQ(blocks(10, 3), (Sizes{3, 4, 3}));
  EXPECT_EQ(blocks(6, 4), (Sizes{1, 2, 2, 1}));  // pp 2 with 2 chunks a stage
  EXPECT_EQ(blocks(2, 4), (Sizes{0, 1, 1, 0}));
  EXPECT_EQ(blocks(1, 3), (Sizes{0, 1, 0}));
  Sizes large(16, 8);
  large.front() = large.back() = 7;
  EXPECT_EQ(blocks(126, 16), large);
}

Pipeline pipeline_of(int64_t stages, int64_t chunks, const std::string& name) {
  return make_pipeline(name, {stages, 2 * stages, chunks});
}

std::string of_stage(const Pipeline& p, const std::vector<ChunkRange>& cut, int64_t stage) {
  std::string out;
  for (int64_t c = 0; c < p.shape.chunks; ++c)
    out += (c ? " | " : "") + range_text(cut[static_cast<size_t>(p.virtual_stage(stage, c))]);
  return out;
}

TEST(StageCut, ChunksOfAStage) {
  const std::vector<ChunkRange> cut = stage_cut(16, 4);
  const Pipeline looped = pipeline_of(2, 2, "interleaved"), vee = pipeline_of(2, 2, "zero_bubble");
  EXPECT_EQ(of_stage(looped, cut, 0), "embedding, blocks 1-4 | blocks 9-12");
  EXPECT_EQ(of_stage(looped, cut, 1), "blocks 5-8 | blocks 13-16, head");
  EXPECT_EQ(of_stage(vee, cut, 0), "embedding, blocks 1-4 | blocks 13-16, head");
  EXPECT_EQ(of_stage(vee, cut, 1), "blocks 5-8 | blocks 9-12");
  EXPECT_EQ(of_stage(looped, stage_cut(2, 4), 0), "embedding | block 2");
  EXPECT_EQ(of_stage(pipeline_of(1, 1, "1f1b"), stage_cut(1, 1), 0), "embedding, block 1, head");
  EXPECT_EQ(head_stage(looped), 1);
  EXPECT_EQ(head_stage(vee), 0);
  EXPECT_EQ(head_stage(pipeline_of(4, 1, "gpipe")), 3);
}

TEST(StageCut, GivenBlocks) {
  EXPECT_EQ(blocks(5, 2, {1, 4}), (Sizes{1, 4}));
  EXPECT_EQ(blocks(4, 4, {0, 1, 3, 0}), (Sizes{0, 1, 3, 0}));
  const std::vector<ChunkRange> cut = stage_cut(6, 3, {3, 1, 2});
  EXPECT_EQ(cut[1].first_layer, 3);
  EXPECT_EQ(cut[2].first_layer, 4);
  EXPECT_THROW(stage_cut(6, 3, {3, 3}), LogicError);  // the deck's checks come first
  EXPECT_THROW(stage_cut(6, 3, {3, 1, 1}), LogicError);
  EXPECT_THROW(stage_cut(1, 4), LogicError);
}

// O024
TEST(StageCut, UnitsOfAllStagesHoldEveryParameterOnce) {
  struct Form {
    int64_t stages, chunks;
    const char* name;
  };
  for (const char* family : {"gpt2", "llama", "qwen3"})
    for (int64_t layers : {6, 7, 10, 12})  // with 12, "layers.1." is a beginning of no other block's names
      for (const Form& f : {Form{1, 1, "1f1b"},
                            {2, 1, "gpipe"},
                            {3, 1, "1f1b"},
                            {4, 1, "zero_bubble"},
                            {1, 2, "interleaved"},
                            {2, 2, "interleaved"},
                            {4, 2, "interleaved"},
                            {2, 3, "interleaved"},
                            {1, 2, "zero_bubble"},
                            {2, 2, "zero_bubble"},
                            {4, 2, "zero_bubble"}}) {
        SCOPED_TRACE(std::string(family) + ", " + std::to_string(layers) + " blocks, " + f.name + " on " +
                     std::to_string(f.stages) + " x " + std::to_string(f.chunks));
        ModelConfig c = kit::small_model(family);
        c.layers = layers;
        const Pipeline pipeline = pipeline_of(f.stages, f.chunks, f.name);
        const std::vector<ChunkRange> cut = stage_cut(layers, pipeline.virtual_stages());
        std::map<std::string, Sizes> held;  // stages, by parameter
        for (int64_t s = 0; s < f.stages; ++s) {
          const auto units = unit_params(c, pipeline, cut, s);
          size_t expected = 0;
          for (int64_t chunk = 0; chunk < f.chunks; ++chunk) {
            const ChunkRange& r = cut[static_cast<size_t>(pipeline.virtual_stage(s, chunk))];
            expected += static_cast<size_t>(r.units());
          }
          ASSERT_EQ(units.size(), expected);
          for (const auto& unit : units) {
            for (const Param& p : unit) held[p.name].push_back(s);
            // a block's parameters lie together, on the stage that has the block
            if (!unit.empty() && unit[0].name.rfind("layers.", 0) == 0) {
              const std::string prefix = unit[0].name.substr(0, unit[0].name.find('.', 7) + 1);
              for (const Param& p : unit) EXPECT_EQ(p.name.rfind(prefix, 0), 0u) << p.name << " among " << prefix;
            }
          }
        }
        for (const Param& p : model_params(c)) {
          const bool copied = c.tie_embeddings && p.name == "embedding.tokens.weight" && head_stage(pipeline) != 0;
          if (copied)
            EXPECT_EQ(held[p.name], (Sizes{0, head_stage(pipeline)}));
          else
            EXPECT_EQ(held[p.name].size(), 1u) << p.name;
          held.erase(p.name);
        }
        EXPECT_TRUE(held.empty()) << held.begin()->first << " is no parameter of the model";
      }
}

TEST(StageCut, OrderOfUnitsIsThatOfTheForwardPass) {
  const ModelConfig c = [] {
    ModelConfig m = kit::small_model("gpt2");
    m.layers = 6;
    return m;
  }();
  auto firsts = [&](const Pipeline& p, int64_t stage) {
    std::vector<std::string> out;
    for (const auto& unit : unit_params(c, p, stage_cut(6, p.virtual_stages()), stage)) {
      const std::string& name = unit[0].name;
      out.push_back(name.substr(0, name.find('.', name.find('.') + 1)));
    }
    return out;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(firsts(pipeline_of(2, 2, "interleaved"), 0),
            (Names{"embedding.tokens", "layers.0", "layers.3", "layers.4"}));
  EXPECT_EQ(firsts(pipeline_of(2, 2, "interleaved"), 1),
            (Names{"layers.1", "layers.2", "layers.5", "final_norm.weight"}));
  EXPECT_EQ(firsts(pipeline_of(2, 2, "zero_bubble"), 0),
            (Names{"embedding.tokens", "layers.0", "layers.5", "final_norm.weight"}));
}

}  // namespace
}  // namespace orthant
