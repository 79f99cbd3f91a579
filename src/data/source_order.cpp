// The samples of one source in Megatron-core's GPTDataset order (core/datasets/gpt_dataset.py; numbers below agree
// with it wherever it computes exactly).
#include "data/source_order.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "data/random_state.hpp"
#include "orthant/error.hpp"

namespace orthant {

using std::to_string;

static constexpr int64_t mark_every = 16;

Permutation::Permutation(int64_t n) : size_(n) {
  if (n < int64_t{0xffffffff} - 1) {
    narrow_.resize(static_cast<size_t>(n));
    std::iota(narrow_.begin(), narrow_.end(), 0u);
  } else {
    wide_.resize(static_cast<size_t>(n));
    std::iota(wide_.begin(), wide_.end(), int64_t{0});
  }
}

void Permutation::shuffle(RandomState& random, int64_t begin, int64_t end) {
  if (wide_.empty())
    random.shuffle(narrow_.data() + begin, end - begin);
  else
    random.shuffle(wide_.data() + begin, end - begin);
}

EpochPlan plan_epochs(int64_t tokens, int64_t sequence, int64_t samples) {
  EpochPlan plan;
  plan.epochs = std::max<int64_t>(1, (samples * sequence + 1 + tokens - 1) / tokens);
  plan.held = (plan.epochs * tokens - 1) / sequence;
  if (plan.epochs == 1) return plan;
  plan.before_last = ((plan.epochs - 1) * tokens - 1) / sequence;
  const int64_t from_last = samples - plan.before_last;
  plan.last_apart = from_last < static_cast<int64_t>(0.8 * static_cast<double>((tokens - 1) / sequence));
  return plan;
}

int64_t samples_for_share(int64_t samples, double share, bool mixed) {
  constexpr double surplus = 0.005;
  if (!mixed) return samples;
  return static_cast<int64_t>(std::ceil(std::ceil(static_cast<double>(samples) * share) * (1 + surplus)));
}

SourceOrder::SourceOrder(const SourceSpec& spec) : spec_(spec) {
  const std::string& prefix = data().prefix();
  const int64_t L = spec_.sequence;
  for (int64_t s = spec_.begin; s < spec_.end; ++s) tokens_ += data().length(s);
  const std::string held = prefix + ": sequences " + to_string(spec_.begin) + " to " + to_string(spec_.end - 1) +
                           " hold " + to_string(tokens_) + " tokens";
  if (tokens_ < L + 1)
    throw DataError(held + ", but one sample needs data.sequence + 1 = " + to_string(L + 1) +
                    "; use more data, another split or a shorter sequence");
  if (spec_.end - 1 > std::numeric_limits<int32_t>::max())
    throw DataError(
        held + "; more than 2147483647 sequences in one dataset are not supported: cut it into several prefixes");

  const int64_t most = std::numeric_limits<int64_t>::max() / 4;
  if (spec_.samples > most / L)
    throw UsageError("data.samples x data.sequence = " + to_string(spec_.samples) + " x " + to_string(L) +
                     " tokens is beyond 2^61");
  const EpochPlan plan = plan_epochs(tokens_, L, spec_.samples);
  epochs_ = plan.epochs;
  RandomState random(spec_.seed);
  order_sequences(random, plan.last_apart);
  order_ = Permutation(plan.held);
  order_.shuffle(random, 0, plan.last_apart ? plan.before_last : plan.held);
  if (plan.last_apart) order_.shuffle(random, plan.before_last, plan.held);
}

void SourceOrder::order_sequences(RandomState& random, bool last_apart) {
  const int64_t n = spec_.end - spec_.begin, total = n * epochs_;
  row_.resize(static_cast<size_t>(total));
  for (int64_t e = 0; e < epochs_; ++e)
    std::iota(row_.begin() + e * n, row_.begin() + (e + 1) * n, static_cast<int32_t>(spec_.begin));
  const int64_t first = last_apart ? total - n : total;
  random.shuffle(row_.data(), first);
  if (last_apart) random.shuffle(row_.data() + first, n);

  marks_.reserve(static_cast<size_t>(total / mark_every + 1));
  int64_t at = 0;
  for (int64_t k = 0; k < total; ++k) {
    if (k % mark_every == 0) marks_.push_back(at);
    at += data().length(row_[static_cast<size_t>(k)]);
  }
}

void SourceOrder::pieces(int64_t i, std::vector<SamplePiece>& out) const {
  int64_t from = order_[i] * spec_.sequence, left = spec_.sequence + 1;
  const auto mark = std::upper_bound(marks_.begin(), marks_.end(), from) - marks_.begin() - 1;
  int64_t k = mark * mark_every, at = marks_[static_cast<size_t>(mark)];
  for (; left > 0; ++k) {
    const int64_t sequence = row_[static_cast<size_t>(k)], length = data().length(sequence);
    if (from < at + length) {  // never true for an empty sequence
      const int64_t offset = from - at, take = std::min(left, length - offset);
      out.push_back({0, data().document_of(sequence), sequence, offset, take});
      left -= take;
      from += take;
    }
    at += length;
  }
}

}  // namespace orthant
