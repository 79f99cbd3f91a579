// The mixture of several sources.
#include "data/blend.hpp"

#include <algorithm>
#include <limits>

#include "orthant/error.hpp"

namespace orthant {

Blend::Blend(std::vector<double> weights, std::vector<int64_t> limits)
    : Blend(std::vector<Segment>{{0, std::move(weights)}}, std::move(limits)) {}

Blend::Blend(std::vector<Segment> segments, std::vector<int64_t> limits)
    : segments_(std::move(segments)), limits_(std::move(limits)), used_(limits_.size(), 0) {
  ORTHANT_ENSURE(!limits_.empty() && !segments_.empty() && segments_[0].first == 0, "a mixture begins at sample 0");
  for (size_t s = 0; s < segments_.size(); ++s) {
    ORTHANT_ENSURE(segments_[s].weights.size() == limits_.size(), "one limit for each weight");
    ORTHANT_ENSURE(s == 0 || segments_[s].first > segments_[s - 1].first, "changes of weights in order");
  }
  // sized now: threads read entries that are set while others may still be to come
  bases_.assign(segments_.size(), std::vector<int64_t>(limits_.size(), 0));
  // with many sources marks get rarer: at most 2 bytes a sample, and a replay of 4 x sources steps
  interval_ = std::max<int64_t>(256, 4 * static_cast<int64_t>(limits_.size()));
}

size_t Blend::segment_of(int64_t i) const {
  size_t s = 0;
  while (s + 1 < segments_.size() && segments_[s + 1].first <= i) ++s;
  return s;
}

size_t Blend::pick(int64_t i, size_t segment, const std::vector<int64_t>& used) const {
  const std::vector<double>& weights = segments_[segment].weights;
  const std::vector<int64_t>& base = bases_[segment];
  const double drawn = std::max(static_cast<double>(i - segments_[segment].first), 1.0);
  size_t best = 0;
  double behind = weights[0] * drawn - static_cast<double>(used[0] - base[0]);
  for (size_t d = 1; d < weights.size(); ++d) {
    const double here = weights[d] * drawn - static_cast<double>(used[d] - base[d]);
    if (here > behind) behind = here, best = d;
  }
  return best;
}

void Blend::walk(int64_t n) const {
  if (walked_ >= n || exhausted_ >= 0) return;
  size_t s = segment_of(walked_);
  while (walked_ < n) {
    if (s + 1 < segments_.size() && segments_[s + 1].first == walked_) ++s;
    if (segments_[s].first == walked_) bases_[s] = used_;
    const size_t d = pick(walked_, s, used_);
    if (used_[d] == limits_[d]) {
      exhausted_ = static_cast<int64_t>(d);
      return;
    }
    if (walked_ % interval_ == 0) marks_.insert(marks_.end(), used_.begin(), used_.end());
    ++used_[d];
    ++walked_;
  }
}

bool Blend::holds(int64_t n) const {
  const std::lock_guard guard(lock_);
  walk(n);
  return walked_ >= n;
}

int64_t Blend::available() const {
  const std::lock_guard guard(lock_);
  walk(std::numeric_limits<int64_t>::max());
  return walked_;
}

int64_t Blend::exhausted() const {
  const std::lock_guard guard(lock_);
  return exhausted_;
}

std::vector<int64_t> Blend::drawn(int64_t n) const {
  std::vector<int64_t> used(limits_.size());
  {
    const std::lock_guard guard(lock_);
    walk(n);
    ORTHANT_ENSURE(n >= 0 && n <= walked_,
                   "sample " + std::to_string(n) + " of a mixture of " + std::to_string(walked_));
    if (n == walked_) return used_;
    const auto mark = marks_.begin() + n / interval_ * static_cast<int64_t>(used.size());
    std::copy(mark, mark + static_cast<int64_t>(used.size()), used.begin());
  }
  int64_t k = n / interval_ * interval_;
  for (size_t s = segment_of(k); k < n; ++k) {
    if (s + 1 < segments_.size() && segments_[s + 1].first == k) ++s;
    ++used[pick(k, s, used)];
  }
  return used;
}

std::pair<int64_t, int64_t> Blend::at(int64_t i) const {
  ORTHANT_ENSURE(i >= 0 && holds(i + 1), "sample " + std::to_string(i) + " of a mixture that ends before it");
  const std::vector<int64_t> used = drawn(i);
  const size_t d = pick(i, segment_of(i), used);
  return {static_cast<int64_t>(d), used[d]};
}

}  // namespace orthant
