// The two ends of a tensor-parallel region: `enter` and `leave`, transposes of each other.
//
//   sequence parallel off: enter = copy,                     leave = sum over the axis
//   sequence parallel on:  enter = gather along the sequence, leave = scatter-sum along the sequence
//
// Forward and backward use the same two words in the same order: enter, compute, leave. An edge is typed by what the
// region cuts, so that a layer cannot be given another axis by mistake.
#pragma once

#include "orthant/context.hpp"

namespace orthant {

/// One rank's summand of a sum over the ranks of an axis: a T matrix, or in reproducible mode an exact sum.
struct Partial {
  int64_t rows = 0, cols = 0;
  Tensor value;  ///< T [rows, cols]
  Tensor exact;  ///< i64 [2, rows * cols]
};

struct HeadRole {};   // attention heads
struct FfnRole {};    // inner width of the feed-forward layer
struct VocabRole {};  // rows of embedding and head

namespace detail {
Tensor edge_enter(Context& ctx, const Axis& axis, const Tensor& x, const char* site);
struct Left {
  Tensor out;
  Pending pending;
};
Left edge_leave(Context& ctx, const Axis& axis, const Partial& y, const char* site);
}  // namespace detail

/// A summand with memory: T, or zeroed exact sums in reproducible mode.
Partial make_partial(Context& ctx, int64_t rows, int64_t cols);

/// The result of `leave`, which may still be under way.
class Leaving {
 public:
  Leaving(Tensor out, Pending pending) : out_(std::move(out)), pending_(std::move(pending)) {}
  Tensor wait() {
    pending_.wait();
    return out_;
  }

 private:
  Tensor out_;
  Pending pending_;
};

template <class Role>
class Edge {
 public:
  explicit Edge(const Axis& axis) : axis_(&axis) {}
  /// [tokens of the shard, width] -> [tokens, width].
  Tensor enter(Context& ctx, const Tensor& x, const char* site) const { return detail::edge_enter(ctx, *axis_, x, site); }
  /// [tokens, width] summands -> [tokens of the shard, width].
  Leaving leave(Context& ctx, const Partial& y, const char* site) const {
    auto left = detail::edge_leave(ctx, *axis_, y, site);
    return Leaving(std::move(left.out), std::move(left.pending));
  }
  const Axis& axis() const { return *axis_; }

 private:
  const Axis* axis_;
};

using HeadEdge = Edge<HeadRole>;
using FfnEdge = Edge<FfnRole>;
using VocabEdge = Edge<VocabRole>;

}  // namespace orthant
