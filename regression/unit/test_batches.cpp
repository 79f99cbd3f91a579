// From the stream of samples to micro-batches: the same samples in the same step on every mesh, and which tokens
// count.
// ranks: 1 2 4
// labels: smoke
#include <gtest/gtest.h>

#include <numeric>

#include "data/batches.hpp"
#include "data_fixture.hpp"
#include "mesh_kit.hpp"

namespace orthant {
namespace {

using namespace kit;

constexpr int64_t length = 8, samples = 64;
constexpr int32_t eod = 0;

/// Documents of uneven lengths of tokens 1..250 that end with `eod`, and a mask with a 0 in every third place.
std::vector<std::vector<int32_t>> documents(bool mask) {
  std::vector<std::vector<int32_t>> all;
  int32_t next = 0;
  for (int64_t d = 0; d < 40; ++d) {
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < 5 + d * 7 % 23; ++t, ++next) tokens.push_back(mask ? next % 3 != 0 : 1 + next * 17 % 250);
    tokens.push_back(mask ? 1 : eod);
    all.push_back(tokens);
  }
  return all;
}

/// The stream, with a folder of its own on each rank.
class Source {
 public:
  explicit Source(bool mask) : stream(SampleStream::train(settings(mask))) {}

 private:
  DataSettings settings(bool mask) {
    DataSettings s;
    s.train = {folder_.write("set", documents(mask))};
    s.sequence = length;
    s.split = "1,0,0";
    s.samples = samples;
    return s;
  }
  testing::Scratch folder_;

 public:
  SampleStream stream;
};

std::vector<int32_t> sample(const SampleStream& stream, int64_t i) {
  std::vector<int32_t> row(static_cast<size_t>(length + 1));
  stream.sample(i, row.data());
  return row;
}

std::unique_ptr<Rig> rig_with(int64_t dp, DType compute = DType::f64) {
  MeshShape shape;
  shape.dp = dp;
  shape.tp = world_size() / dp;
  RigOptions o;
  o.compute = compute;
  o.sequence = length;
  return std::make_unique<Rig>(MPI_COMM_WORLD, shape, std::vector<Param>{}, o);
}

std::vector<int32_t> ints(Backend& be, const Tensor& x) {
  Host<int32_t> h(be, x);
  return {h.data(), h.data() + x.size()};
}

/// Samples (inputs and last label) that the ranks of dp see in a step, in the order dp rank, micro-batch, sequence.
std::vector<int32_t> seen(Rig& rig, const SampleStream& stream, int64_t global, int64_t micro, int64_t first) {
  const BatchShape shape{global, micro, rig.layout.shape().dp, rig.layout.at().dp};
  Batches batches(stream, shape, {});
  batches.load_rows(first);
  batches.count(rig.ctx);
  EXPECT_EQ(batches.valid_tokens(), global * length);
  std::vector<int32_t> mine;
  for (int64_t j = 0; j < shape.micros(); ++j) {
    const MicroBatch mb = batches.micro(rig.ctx, j);
    EXPECT_EQ(mb.sequences, micro);
    EXPECT_EQ(mb.length, length);
    const std::vector<int32_t> ids = ints(*rig.backend, mb.ids), labels = ints(*rig.backend, mb.labels),
                               positions = ints(*rig.backend, mb.positions);
    for (int64_t b = 0; b < micro; ++b) {
      for (int64_t t = 0; t < length; ++t) {
        const auto at = static_cast<size_t>(t * micro + b);  // row = position * sequences + sequence
        mine.push_back(ids[at]);
        EXPECT_EQ(positions[at], t);
        if (t + 1 < length) {
          EXPECT_EQ(labels[at], ids[at + static_cast<size_t>(micro)]);
        }
      }
      mine.push_back(labels[static_cast<size_t>((length - 1) * micro + b)]);
    }
  }
  std::vector<int32_t> all(mine.size() * static_cast<size_t>(shape.dp));
  MPI_Allgather(mine.data(), static_cast<int>(mine.size()), MPI_INT32_T, all.data(), static_cast<int>(mine.size()),
                MPI_INT32_T, rig.mesh.comm(AxisName::dp));
  return all;
}

std::vector<int32_t> expected(const SampleStream& stream, int64_t first, int64_t count) {
  std::vector<int32_t> out;
  for (int64_t i = first; i < first + count; ++i)
    for (int32_t token : sample(stream, i)) out.push_back(token);
  return out;
}

// O070, O072: the step says which samples; mesh, micro-batch and where a run was resumed do not.
TEST(Batches, SamplesOfAStepDoNotDependOnTheMesh) {
  const Source source(false);
  for (int64_t dp : {1, 2, 4}) {
    if (world_size() % dp) continue;
    auto rig = rig_with(dp);
    for (int64_t micro : {1, 2, 4, 8}) {
      if (8 % (micro * dp)) continue;
      SCOPED_TRACE("dp " + std::to_string(dp) + ", micro " + std::to_string(micro));
      for (int64_t step : {0, 1, 5})
        EXPECT_EQ(seen(*rig, source.stream, 8, micro, step * 8), expected(source.stream, step * 8, 8))
            << "step " << step;
    }
  }
}

TEST(Batches, AnotherDpAfterAResumeGoesOnWithTheNextSample) {
  const Source source(false);
  std::vector<int32_t> all;
  int64_t first = 0, micro = 1;
  for (int64_t dp : {int64_t{1}, int64_t{world_size()}, int64_t{1}}) {
    auto rig = rig_with(dp);
    for (int step = 0; step < 2; ++step, first += 8)
      for (int32_t token : seen(*rig, source.stream, 8, micro, first)) all.push_back(token);
    micro = 8 / world_size();
  }
  EXPECT_EQ(all, expected(source.stream, 0, 48));
}

/// Labels and weights of every token of a step against a rule; returns how many count.
int64_t check_mask(int64_t dp, const SampleStream& stream, LossMask mask,
                   const std::function<bool(int64_t, int64_t)>& counts) {
  auto rig = rig_with(dp);
  const int64_t global = 8, micro = 8 / dp / (dp < 4 ? 2 : 1), first = 16;
  const BatchShape shape{global, micro, dp, rig->layout.at().dp};
  Batches batches(stream, shape, mask);
  batches.load_rows(first);
  batches.count(rig->ctx);
  int64_t valid = 0;
  for (int64_t i = 0; i < global; ++i)
    for (int64_t t = 0; t < length; ++t) valid += counts(first + i, t);
  EXPECT_EQ(batches.valid_tokens(), valid);
  for (int64_t j = 0; j < shape.micros(); ++j) {
    const MicroBatch mb = batches.micro(rig->ctx, j);
    const std::vector<int32_t> labels = ints(*rig->backend, mb.labels);
    const std::vector<double> weights = to_host(*rig->backend, mb.weights);
    for (int64_t b = 0; b < micro; ++b) {
      const int64_t i = first + shape.dp_rank * (global / dp) + j * micro + b;
      const std::vector<int32_t> row = sample(stream, i);
      for (int64_t t = 0; t < length; ++t) {
        const auto at = static_cast<size_t>(t * micro + b);
        EXPECT_EQ(labels[at], counts(i, t) ? row[static_cast<size_t>(t + 1)] : -1)
            << "sample " << i << " token " << t;
        EXPECT_EQ(weights[at], counts(i, t) ? 1.0 / static_cast<double>(valid) : 0.0);
      }
    }
  }
  return valid;
}

TEST(Batches, InputsThatEndADocumentNeedNotCount) {
  const Source source(false);
  for (int64_t dp : {1, world_size()}) {
    LossMask mask;
    mask.eod = eod;
    const int64_t valid = check_mask(dp, source.stream, mask, [&](int64_t i, int64_t t) {
      return sample(source.stream, i)[static_cast<size_t>(t)] != eod;
    });
    EXPECT_LT(valid, 64);
    EXPECT_GT(valid, 32);
  }
}

TEST(Batches, AMaskSaysWhichLabelsCount) {
  const Source source(false), mask_source(true);
  for (int64_t dp : {1, world_size()})
    for (bool with_eod : {false, true}) {
      LossMask mask;
      mask.mask = &mask_source.stream;
      if (with_eod) mask.eod = eod;
      const int64_t valid = check_mask(dp, source.stream, mask, [&](int64_t i, int64_t t) {
        const bool ends = with_eod && sample(source.stream, i)[static_cast<size_t>(t)] == eod;
        return !ends && sample(mask_source.stream, i)[static_cast<size_t>(t + 1)] != 0;
      });
      EXPECT_LT(valid, 60);
      EXPECT_GT(valid, 16);
    }
}

TEST(Batches, WeightsAreOfTheAccumulationType) {
  const Source source(false);
  auto rig = rig_with(1, DType::bf16);
  Batches batches(source.stream, {8, 4, 1, 0}, {});
  batches.load_rows(0);
  batches.count(rig->ctx);
  const MicroBatch mb = batches.micro(rig->ctx, 1);
  EXPECT_EQ(mb.weights.dtype(), DType::f32);
  EXPECT_EQ(to_host(*rig->backend, mb.weights), std::vector<double>(4 * length, static_cast<double>(1.0f / 64)));
}

TEST(Batches, PromptsHaveNoLabels) {
  auto rig = rig_with(1);
  const MicroBatch mb = prompt_batch(rig->ctx, {{1, 2, 3}, {4, 5, 6}}, 3);
  EXPECT_EQ(ints(*rig->backend, mb.ids), (std::vector<int32_t>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(ints(*rig->backend, mb.positions), (std::vector<int32_t>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(ints(*rig->backend, mb.labels), std::vector<int32_t>(6, -1));
  EXPECT_EQ(to_host(*rig->backend, mb.weights), std::vector<double>(6, 0.0));
}

}  // namespace
}  // namespace orthant
