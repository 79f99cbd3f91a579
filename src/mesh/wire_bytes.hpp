// Bytes that each kind of call puts on the wire of one rank, by the ring convention of Traffic: one place for the
// transports that only take time.
#pragma once

#include <algorithm>
#include <vector>

#include "orthant/tensor.hpp"

namespace orthant::wire {

inline double bytes_of(const Tensor& x) { return static_cast<double>(x.bytes()); }
/// The part of the data that each of `ranks` ranks passes on in a ring.
inline double share(int ranks) { return static_cast<double>(ranks - 1) / ranks; }
/// gather and scatter_sum of `whole`.
inline double once(const Tensor& whole, int ranks) { return share(ranks) * bytes_of(whole); }
/// sum and max in place.
inline double twice(const Tensor& x, int ranks) { return 2 * share(ranks) * bytes_of(x); }
/// The wire goes both ways at once: what counts is the larger of what leaves and what comes.
inline double exchanged(const Tensor& sent, const std::vector<int64_t>& send_rows, const Tensor& received, const std::vector<int64_t>& receive_rows, int rank) {
  int64_t out = 0, in = 0;
  for (size_t r = 0; r < send_rows.size(); ++r) {
    if (static_cast<int>(r) == rank) continue;
    out += send_rows[r] * sent.cols() * size_of(sent.dtype());
    in += receive_rows[r] * received.cols() * size_of(received.dtype());
  }
  return static_cast<double>(std::max(out, in));
}

}  // namespace orthant::wire
