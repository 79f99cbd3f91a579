// See state_copy.hpp.
#include "checkpoint/state_copy.hpp"

#include <algorithm>
#include <cstring>

namespace orthant {

std::vector<StatePiece> StateCopy::take(std::vector<StatePiece> pieces) {
  const auto bytes_of = [](const StatePiece& p) {
    return p.writer ? p.piece.elements() * static_cast<int64_t>(sizeof(float)) : int64_t{0};
  };
  std::stable_sort(pieces.begin(), pieces.end(),
                   [&](const StatePiece& a, const StatePiece& b) { return bytes_of(a) > bytes_of(b); });
  int64_t taken = 0;
  const auto fits = [&](const StatePiece& p) {
    if (bytes_of(p) > limit_ - taken) return false;
    taken += bytes_of(p);
    return true;
  };
  // Those that do not fit come first: they are written first, and the state is free the sooner.
  const auto copied =
      std::stable_partition(pieces.begin(), pieces.end(), [&](const StatePiece& p) { return !fits(p); });
  live_ = static_cast<size_t>(copied - pieces.begin());
  if (taken > bytes_) {
    memory_.reset();
    memory_.reset(new float[static_cast<size_t>(taken) / sizeof(float)]);  // without zeroing it
    bytes_ = taken;
  }
  float* to = memory_.get();
  for (auto p = copied; p != pieces.end(); ++p) {
    if (bytes_of(*p) == 0) continue;
    std::memcpy(to, p->data, static_cast<size_t>(bytes_of(*p)));
    p->data = to;
    to += p->piece.elements();
  }
  return pieces;
}

}  // namespace orthant
