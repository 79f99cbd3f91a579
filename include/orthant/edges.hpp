// The two ends of a tensor-parallel region: `enter` and `leave`, transposes of each other.
//
//   sequence parallel off: enter = copy,                     leave = sum over the axis
//   sequence parallel on:  enter = gather along the sequence, leave = scatter-sum along the sequence
//
// Forward and backward use the same two words in the same order: enter, compute, leave. An edge is typed by what the
// region cuts, so that a layer cannot be given another axis by mistake. Where the deck's layout leaves the dim uncut, every
// rank of tp computes the whole region: enter gathers as before, leave takes the own part of the sequence.
#pragma once

#include "orthant/context.hpp"

namespace orthant {

/// One rank's summand of a sum over the ranks of an axis: a T matrix, or in reproducible mode an exact sum.
struct Partial {
  int64_t rows = 0, cols = 0;
  Tensor value;  ///< T [rows, cols]
  Tensor exact;  ///< i64 [2, rows * cols]
};

struct HeadRole {  // attention heads
  static bool cut(const MeshShape& s) { return s.cut_heads; }
};
struct FfnRole {  // inner width of the feed-forward layer
  static bool cut(const MeshShape& s) { return s.cut_ffn; }
};
struct VocabRole {  // rows of embedding and head
  static bool cut(const MeshShape& s) { return s.cut_vocab; }
};
struct ExpertRole {  // inner width of an expert, over etp
  static bool cut(const MeshShape& s) { return s.etp > 1; }
};

namespace detail {
Tensor edge_enter(Context& ctx, const Axis& axis, const Tensor& x, const char* site);
Tensor own_part(Context& ctx, const Axis& axis, const Partial& y);
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
  Edge(const Axes& axes, const Layout& layout) : tp_(&axes[AxisName::tp]), cut_(Role::cut(layout.shape()) ? tp_ : &axes[AxisName::none]) {}
  /// [tokens of the shard, width] -> [tokens, width].
  Tensor enter(Context& ctx, const Tensor& x, const char* site) const { return detail::edge_enter(ctx, *tp_, x, site); }
  /// [tokens, width] summands -> [tokens of the shard, width].
  Leaving leave(Context& ctx, const Partial& y, const char* site) const {
    if (cut_ != tp_) return Leaving(detail::own_part(ctx, *tp_, y), Pending());
    auto left = detail::edge_leave(ctx, *tp_, y, site);
    return Leaving(std::move(left.out), std::move(left.pending));
  }
  /// The axis that cuts the sequence between regions.
  const Axis& tokens() const { return *tp_; }
  /// The axis that cuts the region: of one rank where the layout leaves the dim whole.
  const Axis& cut() const { return *cut_; }

 private:
  const Axis *tp_, *cut_;
};

using HeadEdge = Edge<HeadRole>;
using FfnEdge = Edge<FfnRole>;
using VocabEdge = Edge<VocabRole>;
using ExpertEdge = Edge<ExpertRole>;

}  // namespace orthant
