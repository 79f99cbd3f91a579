// From the stream of samples to micro-batches: the same samples in the same step on every mesh, which tokens count,
// where documents begin, and which places of a sequence a rank of cp holds.
// ranks: 1 2 4
// labels: smoke
#include <gtest/gtest.h>

#include <numeric>

#include "data/batches.hpp"
#include "data/context_cut.hpp"
#include "data_fixture.hpp"
#include "mesh_kit.hpp"
#include "orthant/error.hpp"

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
  explicit Source(bool mask) : Source(documents(mask), samples) {}
  /// One sample, the first of these tokens; markers of documents are wherever the test puts them.
  explicit Source(const std::vector<int32_t>& tokens) : Source({tokens}, 1) {}

 private:
  Source(const std::vector<std::vector<int32_t>>& all, int64_t count) : stream(SampleStream::train(settings(all, count))) {}
  DataSettings settings(const std::vector<std::vector<int32_t>>& all, int64_t count) {
    DataSettings s;
    s.train = {folder_.write("set", all)};
    s.sequence = length;
    s.split = "1,0,0";
    s.samples = count;
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

std::unique_ptr<Rig> rig_with(int64_t dp, DType compute = DType::f64, int64_t cp = 1) {
  MeshShape shape;
  shape.dp = dp;
  shape.cp = cp;
  shape.tp = world_size() / dp / cp;
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

using Ints = std::vector<int32_t>;

// O023: an end-of-document token is the last of its document, whatever stands around it.
TEST(Documents, AMarkerBelongsToTheDocumentItEnds) {
  const auto starts = [](const Ints& tokens) {
    return document_starts(tokens.data(), static_cast<int64_t>(tokens.size()), eod);
  };
  EXPECT_EQ(starts({5, 6, 0, 7, 8, 0, 9}), (Ints{0, 0, 0, 3, 3, 3, 6}));
  EXPECT_EQ(starts({0, 5, 6}), (Ints{0, 1, 1}));                  // at place 0: the end of an earlier document
  EXPECT_EQ(starts({5, 0, 0, 0, 6, 7}), (Ints{0, 0, 2, 3, 4, 4}));  // in a row: documents of one token
  EXPECT_EQ(starts({5, 6, 0}), (Ints{0, 0, 0}));
  EXPECT_EQ(starts({5, 6, 7}), (Ints{0, 0, 0}));
  EXPECT_EQ(starts({}), Ints{});
  const Ints none = {5, 0, 6};
  EXPECT_EQ(document_starts(none.data(), 3, -1), (Ints{0, 0, 0}));
}

/// Everything of one token, on the host.
struct Row {
  int32_t id = 0, label = 0, position = 0, start = 0;
  int64_t place = 0;
  double weight = 0;
  bool operator==(const Row&) const = default;
};
void PrintTo(const Row& r, std::ostream* out) {
  *out << "id " << r.id << " label " << r.label << " position " << r.position << " start " << r.start << " place "
       << r.place << " weight " << r.weight;
}

std::vector<Row> rows_of(Backend& be, const MicroBatch& mb) {
  std::vector<Row> out(static_cast<size_t>(mb.tokens()));
  const Ints ids = ints(be, mb.ids), labels = ints(be, mb.labels), positions = ints(be, mb.positions);
  const Ints starts = mb.starts ? ints(be, mb.starts) : Ints(out.size());
  const std::vector<double> weights = to_host(be, mb.weights);
  for (size_t i = 0; i < out.size(); ++i) out[i] = {ids[i], labels[i], positions[i], starts[i], 0, weights[i]};
  if (mb.places) {
    Host<int64_t> places(be, mb.places);
    for (size_t i = 0; i < out.size(); ++i) out[i].place = places[static_cast<int64_t>(i)];
  }
  return out;
}

// O022, O023: what attention and positions are told of documents.
TEST(Documents, PositionsStartAgainOnlyWhenAsked) {
  const Source source({0, 0, 5, 6, 0, 7, 8, 0, 9});
  auto rig = rig_with(1);
  for (const bool mask : {false, true})
    for (const bool reset : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "document_mask " << mask << ", reset_positions " << reset);
      TokenFacts facts;
      facts.eod = eod, facts.document_mask = mask, facts.reset_positions = reset;
      Batches batches(source.stream, {}, {}, facts);
      batches.load_rows(0);
      batches.count(rig->ctx);
      EXPECT_EQ(batches.valid_tokens(), length);  // a border between documents is still learned
      const MicroBatch mb = batches.micro(rig->ctx, 0);
      EXPECT_EQ(ints(*rig->backend, mb.ids), (Ints{0, 0, 5, 6, 0, 7, 8, 0}));
      EXPECT_EQ(ints(*rig->backend, mb.positions), reset ? (Ints{0, 0, 0, 1, 2, 0, 1, 2}) : (Ints{0, 1, 2, 3, 4, 5, 6, 7}));
      EXPECT_EQ(static_cast<bool>(mb.starts), mask);
      if (mask) {
        EXPECT_EQ(ints(*rig->backend, mb.starts), (Ints{0, 1, 2, 2, 2, 5, 5, 5}));
      }
      EXPECT_FALSE(mb.places);
    }
  TokenFacts markerless;
  markerless.document_mask = true;
  EXPECT_THROW(Batches(source.stream, {}, {}, markerless), LogicError);
  markerless = {};
  markerless.reset_positions = true;
  EXPECT_THROW(Batches(source.stream, {}, {}, markerless), LogicError);
}

Ints places_of(const std::vector<Range>& runs) {
  Ints out;
  for (const Range& run : runs)
    for (int64_t p = run.begin; p < run.begin + run.size; ++p) out.push_back(static_cast<int32_t>(p));
  return out;
}

// O056
TEST(ContextCut, EachRankHoldsAnEarlyAndALateChunk) {
  EXPECT_EQ(places_of(context_runs(8, 2, 0)), (Ints{0, 1, 6, 7}));
  EXPECT_EQ(places_of(context_runs(8, 2, 1)), (Ints{2, 3, 4, 5}));
  EXPECT_EQ(context_runs(8, 2, 1).size(), 2u);  // a chunk each, also where they touch
  EXPECT_EQ(places_of(context_runs(5, 1, 0)), (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(context_runs(5, 1, 0).size(), 1u);
  EXPECT_EQ(places_of(context_runs(8, 2, 1, ContextCut::in_order)), (Ints{4, 5, 6, 7}));
  for (const int64_t cp : {1, 2, 3, 4, 8})
    for (const ContextCut cut : {ContextCut::in_order, ContextCut::balanced}) {
      Ints all, whole(48);
      for (int64_t r = 0; r < cp; ++r)
        for (const int32_t p : places_of(context_runs(48, cp, r, cut))) all.push_back(p);
      std::sort(all.begin(), all.end());
      std::iota(whole.begin(), whole.end(), 0);
      EXPECT_EQ(all, whole) << "cp " << cp;
    }
  // O055: what the deck's checks refuse never reaches a cut that loses tokens
  EXPECT_THROW(context_runs(23, 4, 0), LogicError);
  EXPECT_THROW(context_runs(20, 4, 0), LogicError);
  EXPECT_THROW(context_runs(8, 8, 0), LogicError);
  EXPECT_THROW(context_runs(8, 2, 2), LogicError);
  EXPECT_THROW(context_runs(8, 2, -1), LogicError);
}

TEST(ContextCut, BalancedRanksHaveTheSameWork) {
  const auto work = [](int64_t blocks, int64_t cp, ContextCut cut) {
    std::vector<int64_t> out;
    for (int64_t r = 0; r < cp; ++r) out.push_back(attention_work(blocks, cp, r, cut));
    return out;
  };
  using Work = std::vector<int64_t>;
  EXPECT_EQ(work(16, 4, ContextCut::in_order), (Work{10, 26, 42, 58}));
  EXPECT_EQ(work(16, 4, ContextCut::balanced), (Work{34, 34, 34, 34}));
  EXPECT_EQ(work(16, 1, ContextCut::balanced), (Work{136}));
  EXPECT_EQ(work(4, 2, ContextCut::in_order), (Work{3, 7}));
  EXPECT_EQ(work(4, 2, ContextCut::balanced), (Work{5, 5}));
}

/// What the ranks of cp hold of every micro-batch of a step, put back in the order of whole sequences. One process plays
/// all ranks.
std::vector<Row> put_together(Rig& rig, const SampleStream& stream, BatchShape shape, LossMask mask, TokenFacts facts,
                              int64_t first, int64_t valid) {
  std::vector<Row> all(static_cast<size_t>(shape.global / shape.dp * length));
  std::vector<int> times(all.size());
  for (shape.cp_rank = 0; shape.cp_rank < shape.cp; ++shape.cp_rank) {
    Batches batches(stream, shape, mask, facts);
    batches.load_rows(first);
    batches.count(rig.ctx);
    EXPECT_EQ(batches.valid_tokens(), valid) << "cp rank " << shape.cp_rank;
    for (int64_t j = 0; j < shape.micros(); ++j) {
      const MicroBatch mb = batches.micro(rig.ctx, j);
      EXPECT_EQ(mb.length, length / shape.cp);
      const Ints held = places_of(mb.runs);
      EXPECT_EQ(held, places_of(context_runs(length, shape.cp, shape.cp_rank)));
      const std::vector<Row> rows = rows_of(*rig.backend, mb);
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto B = static_cast<size_t>(mb.sequences);
        const size_t at = (static_cast<size_t>(j) * length + static_cast<size_t>(held[i / B])) * B + i % B;
        all[at] = rows[i];
        ++times[at];
      }
    }
  }
  EXPECT_EQ(times, std::vector<int>(times.size(), 1));
  return all;
}

TEST(ContextCut, RanksTogetherHoldTheWholeMicroBatch) {
  const Source source(false), mask_source(true);
  LossMask mask;
  mask.mask = &mask_source.stream, mask.eod = eod;
  TokenFacts facts;
  facts.eod = eod, facts.document_mask = facts.reset_positions = facts.places = true;
  const int64_t first = 16;
  for (const int64_t dp : {1, world_size()}) {
    auto rig = rig_with(dp);
    BatchShape shape{8, dp < 4 ? 2 : 1, dp, rig->layout.at().dp};
    int64_t valid = 0;
    for (int64_t i = first; i < first + shape.global; ++i) {
      const Ints tokens = sample(source.stream, i), counts = sample(mask_source.stream, i);
      for (size_t t = 0; t < length; ++t) valid += tokens[t] != eod && counts[t + 1] != 0;
    }
    const std::vector<Row> whole = put_together(*rig, source.stream, shape, mask, facts, first, valid);
    // the whole against the rule, so that the comparison below is with something right
    for (size_t at = 0; at < whole.size(); ++at) {
      const auto B = static_cast<size_t>(shape.micro);
      const size_t t = at / B % length, micro = at / B / length;
      const int64_t i = first + shape.dp_rank * (shape.global / dp) + static_cast<int64_t>(micro * B + at % B);
      const Ints tokens = sample(source.stream, i);
      size_t start = t;
      while (start > 0 && tokens[start - 1] != eod) --start;
      const bool counted = tokens[t] != eod && sample(mask_source.stream, i)[t + 1] != 0;
      const Row right{tokens[t],
                      counted ? tokens[t + 1] : -1,
                      static_cast<int32_t>(t - start),
                      static_cast<int32_t>(start),
                      i * length + static_cast<int64_t>(t),
                      counted ? 1.0 / static_cast<double>(valid) : 0.0};
      EXPECT_EQ(whole[at], right) << "sample " << i << " token " << t;
    }
    for (const int64_t cp : {2, 4}) {
      shape.cp = cp;
      EXPECT_EQ(put_together(*rig, source.stream, shape, mask, facts, first, valid), whole) << "cp " << cp;
    }
  }
}

// O058: a weight is 1 / tokens that count in the whole batch, wherever these tokens lie.
TEST(ContextCut, UnevenMasksWeighTheSameOnEveryCp) {
  const Source source({1, 2, 3, 4, 5, 6, 7, 8, 9});
  const Ints one = {0, 0, 0, 1, 0, 0, 0, 0, 0}, late = {0, 0, 0, 0, 0, 1, 1, 1, 1};
  auto rig = rig_with(1);
  for (const Ints& marks : {one, late}) {
    const Source counts(marks);
    LossMask mask;
    mask.mask = &counts.stream;
    const auto valid = std::accumulate(marks.begin(), marks.end(), int64_t{0});
    for (const int64_t cp : {1, 2, 4}) {
      BatchShape shape;
      shape.cp = cp;
      const std::vector<Row> rows = put_together(*rig, source.stream, shape, mask, {}, 0, valid);
      for (size_t t = 0; t < length; ++t) {
        EXPECT_EQ(rows[t].weight, marks[t + 1] != 0 ? 1.0 / static_cast<double>(valid) : 0.0) << "cp " << cp;
        EXPECT_EQ(rows[t].label, marks[t + 1] != 0 ? static_cast<int32_t>(t + 2) : -1) << "cp " << cp;
      }
    }
  }
}

// On a mesh with a real cp axis: counts are summed over dp alone, and plans and prompts are cut like batches.
TEST(ContextCut, OnAMesh) {
  const Source source(false);
  TokenFacts facts;
  facts.eod = eod, facts.document_mask = facts.places = true;
  const int64_t cp = world_size() > 1 ? 2 : 1, dp = world_size() / cp;
  auto rig = rig_with(dp, DType::bf16, cp);
  const Coordinates at = rig->layout.at();
  Batches batches(source.stream, {8, 2, dp, at.dp, cp, at.cp}, {}, facts);
  batches.load_rows(0);
  batches.count(rig->ctx);
  EXPECT_EQ(batches.valid_tokens(), 8 * length);
  const Ints held = places_of(context_runs(length, cp, at.cp));
  const MicroBatch mb = batches.micro(rig->ctx, 0), blank = blank_batch(rig->ctx, 2, length, facts),
                   bare = blank_batch(rig->ctx, 2, length);
  for (const MicroBatch* m : {&mb, &blank, &bare}) {
    EXPECT_EQ(m->sequences, 2);
    EXPECT_EQ(m->length, length / cp);
    EXPECT_EQ(places_of(m->runs), held);
    for (const Tensor& t : {m->ids, m->labels, m->positions, m->weights}) EXPECT_EQ(t.rows(), 2 * length / cp);
  }
  for (const MicroBatch* m : {&mb, &blank}) {
    EXPECT_EQ(m->starts.rows(), 2 * length / cp);
    EXPECT_EQ(m->starts.dtype(), DType::i32);
    EXPECT_EQ(m->places.rows(), 2 * length / cp);
    EXPECT_EQ(m->places.dtype(), DType::i64);
  }
  // what attention over whole sequences (all_to_all) is told, on every rank of cp
  Batches uncut(source.stream, {8, 2, dp, at.dp}, {}, facts);
  uncut.load_rows(0);
  uncut.count(rig->ctx);
  const MicroBatch all = uncut.micro(rig->ctx, 0);
  const auto host_places = [&](const Tensor& x) {
    Host<int64_t> h(*rig->backend, x);
    return std::vector<int64_t>(h.data(), h.data() + x.rows());
  };
  EXPECT_EQ(ints(*rig->backend, mb.whole_starts), ints(*rig->backend, all.starts));
  EXPECT_EQ(host_places(mb.whole_places), host_places(all.places));
  EXPECT_EQ(blank.whole_starts.rows(), 2 * length);
  EXPECT_EQ(blank.whole_places.rows(), 2 * length);
  EXPECT_FALSE(bare.starts);
  EXPECT_FALSE(bare.places);
  const MicroBatch prompt = prompt_batch(rig->ctx, {{0, 1, 2, 3, 4, 5, 6, 7}}, length);
  EXPECT_EQ(ints(*rig->backend, prompt.ids), held);
  EXPECT_EQ(ints(*rig->backend, prompt.positions), held);
}

}  // namespace
}  // namespace orthant
