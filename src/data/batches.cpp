// See batches.hpp.
#include "data/batches.hpp"

#include <optional>

#include "data/context_cut.hpp"
#include "orthant/error.hpp"

namespace orthant {

namespace {

/// `length` is that of whole sequences, of which this rank holds the places in `runs`.
MicroBatch allocate(Context& ctx, int64_t sequences, int64_t length, std::vector<Range> runs, const TokenFacts& facts) {
  MicroBatch mb;
  mb.sequences = sequences;
  for (const Range& run : runs) mb.length += run.size;
  mb.runs = std::move(runs);
  const auto of = [&](DType type) { return ctx.be.alloc(type, mb.tokens(), 1, MemoryKind::workspace); };
  for (Tensor* t : {&mb.ids, &mb.labels, &mb.positions}) *t = of(DType::i32);
  if (facts.document_mask) mb.starts = of(DType::i32);
  if (facts.places) mb.places = of(DType::i64);
  // of the whole sequences, which only differ where cp cuts them
  const int64_t whole = sequences * length;
  mb.whole_starts = whole == mb.tokens() ? mb.starts : facts.document_mask ? ctx.be.alloc(DType::i32, whole, 1, MemoryKind::workspace) : Tensor();
  mb.whole_places = whole == mb.tokens() ? mb.places : facts.places ? ctx.be.alloc(DType::i64, whole, 1, MemoryKind::workspace) : Tensor();
  mb.weights = of(ctx.A);
  return mb;
}

std::vector<Range> runs_of(const Context& ctx, int64_t length) {
  return context_runs(length, ctx.layout.shape().cp, ctx.layout.at().cp);
}

/// Calls visit(row, sequence of the micro-batch, place in that sequence) for every row.
template <class Visit>
void for_rows(const MicroBatch& mb, Visit visit) {
  int64_t row = 0;
  for (const Range& run : mb.runs)
    for (int64_t place = run.begin; place < run.begin + run.size; ++place)
      for (int64_t b = 0; b < mb.sequences; ++b) visit(row++, b, place);
}

}  // namespace

std::vector<int32_t> document_starts(const int32_t* tokens, int64_t length, int64_t eod) {
  std::vector<int32_t> starts(static_cast<size_t>(length));
  int64_t start = 0;
  for (int64_t t = 0; t < length; ++t) {
    if (t > 0 && tokens[t - 1] == eod) start = t;
    starts[static_cast<size_t>(t)] = static_cast<int32_t>(start);
  }
  return starts;
}

Batches::Batches(const SampleStream& stream, BatchShape shape, LossMask mask, TokenFacts facts)
    : stream_(stream), shape_(shape), mask_(mask), facts_(facts) {
  ORTHANT_ENSURE(facts.eod >= 0 || !(facts.document_mask || facts.reset_positions),
                 "documents are told apart by the token that ends them, and none is given");
}

void Batches::load_rows(int64_t first) {
  const int64_t L = stream_.sequence(), mine = shape_.global / shape_.dp;
  first_ = first + shape_.dp_rank * mine;
  rows_.resize(static_cast<size_t>(mine * (L + 1)));
  labels_.resize(static_cast<size_t>(mine * L));
  starts_.clear();
  std::vector<int32_t> counts(mask_.mask ? static_cast<size_t>(L + 1) : 0);
  int64_t valid = 0;
  for (int64_t i = 0; i < mine; ++i) {
    int32_t* row = rows_.data() + i * (L + 1);
    stream_.sample(first_ + i, row);
    if (mask_.mask) mask_.mask->sample(first_ + i, counts.data());
    for (int64_t t = 0; t < L; ++t) {
      bool counted =
          (mask_.eod < 0 || row[t] != mask_.eod) && (!mask_.mask || counts[static_cast<size_t>(t + 1)] != 0);
      labels_[static_cast<size_t>(i * L + t)] = counted ? row[t + 1] : -1;
      valid += counted;
    }
    // on the whole sequence: a document may begin on another rank of cp
    if (facts_.document_mask || facts_.reset_positions) {
      const std::vector<int32_t> starts = document_starts(row, L, facts_.eod);
      starts_.insert(starts_.end(), starts.begin(), starts.end());
    }
  }
  valid_ = valid;
}

void Batches::count(Context& ctx) {
  Tensor sum = ctx.workspace(DType::i64, 1, 1);
  Host<int64_t>(ctx.be, sum)[0] = valid_;
  ctx.axes[AxisName::dp].sum_control(sum);
  valid_ = Host<int64_t>(ctx.be, sum)[0];
}

MicroBatch Batches::micro(Context& ctx, int64_t j) const {
  const int64_t L = stream_.sequence(), B = shape_.micro;
  MicroBatch mb = allocate(ctx, B, L, context_runs(L, shape_.cp, shape_.cp_rank), facts_);
  Host<int32_t> ids(ctx.be, mb.ids), labels(ctx.be, mb.labels), positions(ctx.be, mb.positions);
  std::optional<Host<int32_t>> starts;
  std::optional<Host<int64_t>> places;
  if (facts_.document_mask) starts.emplace(ctx.be, mb.starts);
  if (facts_.places) places.emplace(ctx.be, mb.places);
  for_rows(mb, [&](int64_t at, int64_t b, int64_t t) {
    const int64_t i = j * B + b;
    const auto token = static_cast<size_t>(i * L + t);
    ids[at] = rows_[static_cast<size_t>(i * (L + 1) + t)];
    labels[at] = labels_[token];
    positions[at] = static_cast<int32_t>(t) - (facts_.reset_positions ? starts_[token] : 0);
    if (starts) (*starts)[at] = starts_[token];
    if (places) (*places)[at] = (first_ + i) * L + t;
  });
  if (shape_.cp > 1 && facts_.document_mask) {
    Host<int32_t> whole(ctx.be, mb.whole_starts);
    for (int64_t at = 0; at < L * B; ++at) whole[at] = starts_[static_cast<size_t>((j * B + at % B) * L + at / B)];
  }
  if (shape_.cp > 1 && facts_.places) {
    Host<int64_t> whole(ctx.be, mb.whole_places);
    for (int64_t at = 0; at < L * B; ++at) whole[at] = (first_ + j * B + at % B) * L + at / B;
  }
  auto weigh = [&](auto* w) {
    for (int64_t t = 0; t < mb.tokens(); ++t)
      w[t] = labels[t] >= 0 ? static_cast<std::remove_pointer_t<decltype(w)>>(ctx.loss_scale / static_cast<double>(valid_)) : 0;
  };
  if (ctx.A == DType::f64)
    weigh(Host<double>(ctx.be, mb.weights).data());
  else
    weigh(Host<float>(ctx.be, mb.weights).data());
  return mb;
}

MicroBatch blank_batch(Context& ctx, int64_t sequences, int64_t length, const TokenFacts& facts) {
  return allocate(ctx, sequences, length, runs_of(ctx, length), facts);
}

MicroBatch prompt_batch(Context& ctx, const std::vector<std::vector<int32_t>>& sequences, int64_t length, const TokenFacts& facts) {
  MicroBatch mb = blank_batch(ctx, static_cast<int64_t>(sequences.size()), length, facts);
  for (const Tensor* t : {&mb.starts, &mb.places, &mb.whole_starts, &mb.whole_places})  // one document, the first places of a stream
    if (*t) ctx.be.zero(*t);
  Host<int32_t> ids(ctx.be, mb.ids), labels(ctx.be, mb.labels), positions(ctx.be, mb.positions);
  for_rows(mb, [&](int64_t at, int64_t b, int64_t t) {
    ids[at] = sequences[static_cast<size_t>(b)][static_cast<size_t>(t)];
    labels[at] = -1;
    positions[at] = static_cast<int32_t>(t);
  });
  ctx.be.zero(mb.weights);
  return mb;
}

}  // namespace orthant
