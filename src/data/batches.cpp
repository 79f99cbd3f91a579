// See batches.hpp.
#include "data/batches.hpp"

namespace orthant {

void Batches::load_rows(int64_t first) {
  const int64_t L = stream_.sequence(), mine = shape_.global / shape_.dp;
  rows_.resize(static_cast<size_t>(mine * (L + 1)));
  labels_.resize(static_cast<size_t>(mine * L));
  std::vector<int32_t> counts(mask_.mask ? static_cast<size_t>(L + 1) : 0);
  int64_t valid = 0;
  for (int64_t i = 0; i < mine; ++i) {
    int32_t* row = rows_.data() + i * (L + 1);
    int64_t sample = first + shape_.dp_rank * mine + i;
    stream_.sample(sample, row);
    if (mask_.mask) mask_.mask->sample(sample, counts.data());
    for (int64_t t = 0; t < L; ++t) {
      bool counted =
          (mask_.eod < 0 || row[t] != mask_.eod) && (!mask_.mask || counts[static_cast<size_t>(t + 1)] != 0);
      labels_[static_cast<size_t>(i * L + t)] = counted ? row[t + 1] : -1;
      valid += counted;
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
  MicroBatch mb = blank_batch(ctx, B, L);
  Host<int32_t> ids(ctx.be, mb.ids), labels(ctx.be, mb.labels), positions(ctx.be, mb.positions);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < L; ++t) {
      int64_t i = j * B + b, at = t * B + b;
      ids[at] = rows_[static_cast<size_t>(i * (L + 1) + t)];
      labels[at] = labels_[static_cast<size_t>(i * L + t)];
      positions[at] = static_cast<int32_t>(t);
    }
  auto weigh = [&](auto* w) {
    for (int64_t t = 0; t < mb.tokens(); ++t)
      w[t] = labels[t] >= 0 ? static_cast<std::remove_pointer_t<decltype(w)>>(1.0 / static_cast<double>(valid_)) : 0;
  };
  if (ctx.A == DType::f64)
    weigh(Host<double>(ctx.be, mb.weights).data());
  else
    weigh(Host<float>(ctx.be, mb.weights).data());
  return mb;
}

MicroBatch blank_batch(Context& ctx, int64_t sequences, int64_t length) {
  MicroBatch mb;
  mb.sequences = sequences;
  mb.length = length;
  int64_t tokens = sequences * length;
  for (Tensor* t : {&mb.ids, &mb.labels, &mb.positions})
    *t = ctx.be.alloc(DType::i32, tokens, 1, MemoryKind::workspace);
  mb.weights = ctx.be.alloc(ctx.A, tokens, 1, MemoryKind::workspace);
  return mb;
}

MicroBatch prompt_batch(Context& ctx, const std::vector<std::vector<int32_t>>& sequences, int64_t length) {
  auto B = static_cast<int64_t>(sequences.size());
  MicroBatch mb = blank_batch(ctx, B, length);
  Host<int32_t> ids(ctx.be, mb.ids), labels(ctx.be, mb.labels), positions(ctx.be, mb.positions);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < length; ++t) {
      int64_t at = t * B + b;
      ids[at] = sequences[static_cast<size_t>(b)][static_cast<size_t>(t)];
      labels[at] = -1;
      positions[at] = static_cast<int32_t>(t);
    }
  ctx.be.zero(mb.weights);
  return mb;
}

}  // namespace orthant
