// The mixture of several sources.
#include "data/blend.hpp"

#include <algorithm>
#include <limits>

#include "orthant/error.hpp"

namespace orthant {

Blend::Blend(std::vector<double> weights, std::vector<int64_t> limits)
    : weights_(std::move(weights)), limits_(std::move(limits)), used_(weights_.size(), 0) {
  ORTHANT_ENSURE(weights_.size() == limits_.size() && !weights_.empty(), "one limit for each weight");
  // with many sources marks get rarer: at most 2 bytes a sample, and a replay of 4 x sources steps
  interval_ = std::max<int64_t>(256, 4 * static_cast<int64_t>(weights_.size()));
}

size_t Blend::pick(int64_t i, const std::vector<int64_t>& used) const {
  const double drawn = std::max(static_cast<double>(i), 1.0);
  size_t best = 0;
  double behind = weights_[0] * drawn - static_cast<double>(used[0]);
  for (size_t d = 1; d < weights_.size(); ++d) {
    const double here = weights_[d] * drawn - static_cast<double>(used[d]);
    if (here > behind) behind = here, best = d;
  }
  return best;
}

void Blend::walk(int64_t n) const {
  while (walked_ < n && exhausted_ < 0) {
    const size_t d = pick(walked_, used_);
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

std::pair<int64_t, int64_t> Blend::at(int64_t i) const {
  std::vector<int64_t> used(weights_.size());
  {
    const std::lock_guard guard(lock_);
    walk(i + 1);
    ORTHANT_ENSURE(i >= 0 && i < walked_,
                   "sample " + std::to_string(i) + " of a mixture of " + std::to_string(walked_));
    const auto mark = marks_.begin() + i / interval_ * static_cast<int64_t>(used.size());
    std::copy(mark, mark + static_cast<int64_t>(used.size()), used.begin());
  }
  for (int64_t k = i / interval_ * interval_;; ++k) {
    const size_t d = pick(k, used);
    if (k == i) return {static_cast<int64_t>(d), used[d]};
    ++used[d];
  }
}

}  // namespace orthant
