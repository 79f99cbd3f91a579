// A tensor-parallel product and its collective in pieces of the tokens (comm.chunks), so that one piece travels while
// another is multiplied. With c pieces at least 1 / c of the collective stays in sight: the first piece of an `enter`
// has nothing to hide behind, nor has the last of a `leave`.
//
// Under sequence parallelism piece i of an `enter` is the i-th part of every rank's shard: it arrives rank by rank, and
// each rank's rows are multiplied into their place. In FP8 with one scale a tensor the FP8 numbers arrive, where they serve all
// products (Fp8::can_travel). A `leave` is the transpose. With one piece these are the calls of
// edges.hpp and linear.hpp, one after the other. A product of fewer rows may differ in its last bits, as GEMMs choose
// their blocks by shape; so reproducible mode takes one piece alone.
#pragma once

#include <functional>

#include "layers/linear.hpp"

namespace orthant {

namespace pieces {

/// An edge without its role: the axis of the sequence, and whether it cuts the region.
struct Ends {
  const Axis& tp;
  bool cut;
  template <class Role>
  Ends(const Edge<Role>& edge) : tp(edge.tokens()), cut(&edge.cut() == &edge.tokens()) {}
};

/// One product of a sum: rows `rows` of the input into `out` [rows.size, cols], assigned.
using Rows = std::function<void(Range rows, const Tensor& out)>;

/// x [tokens, in] = enter(x_SD), and y = column_forward(x) for each linear layer; x itself is not kept, unless it is x_SD.
std::vector<Tensor> enter_products(Context& ctx, const Ends& edge, const Operand& x_SD, const std::vector<const Linear*>& layers, const char* site);

/// The same for one layer with gelu behind it.
Activated enter_gelu(Context& ctx, const Ends& edge, const Operand& x_SD, const Linear& layer, const char* site);

/// dy [tokens, out] = enter(dy_SD) and da = dy W of a row-parallel layer. dy may be FP8 numbers alone.
struct Gradient {
  Operand dy;
  Tensor da;
};
Gradient enter_gradient(Context& ctx, const Ends& edge, const Tensor& dy_SD, const Linear& layer, const char* site);

/// leave(y) with y [tokens, cols] made piece by piece by `product`. Not for reproducible mode, which has exact sums.
Leaving leave_rows(Context& ctx, const Ends& edge, int64_t tokens, int64_t cols, const Rows& product, const char* site);

/// y_SD = leave(a W^T) of a row-parallel layer, without its bias.
Tensor leave_product(Context& ctx, const Ends& edge, const Linear& layer, const Operand& a, const char* site);

/// A gather along the sequence under way, of the input of `layers`. x may be FP8 numbers alone.
class Entering {
 public:
  /// `gradient`: not of their input, but of their results' gradient.
  Entering(Context& ctx, const Ends& edge, const Operand& x_SD, const std::vector<const Linear*>& layers, const char* site, bool gradient = false);
  Operand wait() {
    pending_.wait();
    return x_;
  }

 private:
  Operand x_;
  Pending pending_;
};

}  // namespace pieces
}  // namespace orthant
