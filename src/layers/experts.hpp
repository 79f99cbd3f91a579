// The experts of a rank: feed-forward layers on runs of rows, each row with a weight of its own.
//
//   g = x Wg^T, u = x Wu^T;   a = silu(g) * u;   y = (w a) Wd^T             for each expert's run of rows
//   da' = dy Wd;   dw = a . da';   da = w da';   dx = dg Wg + du Wu
//
// The weight is applied before the last product: so y is added up at home as it is, and the gradient of a weight
// is a product of numbers that are here. Over etp = tp each rank has a part of every expert's inner width. y, dx and
// dw are then summands: they go home as such, and are summed there. In reproducible mode canonical blocks of the
// inner width are summed exactly here, before rows are rounded, and weight gradients are products over the rows of
// one canonical token block of one source.
//
// Talks on: tp, in reproducible mode only. Saved: x, w, g, u, a.
#pragma once

#include "layers/dispatch.hpp"
#include "layers/operand.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

class Experts {
 public:
  /// Rows of all experts; in FP8 each expert's run is an operand of its own, and of `all` may be left what these keep.
  struct Rows {
    Tensor all;
    std::vector<Operand> runs;  ///< one each expert; none where the layer has other products
    Rows kept() const;
  };
  struct Saved {
    Rows x;           ///< [received, hidden], a run of rows for each expert
    Tensor weights;   ///< A [received, 1]
    Tensor gate, up;  ///< [received, expert width of this rank]
  };
  struct Gradients {
    Tensor dx;  ///< T [received, hidden]
    Tensor dw;  ///< A [received, 1]
  };

  /// Those of all ranks.
  static std::vector<Param> params(const std::string& prefix, const ModelConfig& config);
  Experts(const std::string& prefix, const ModelConfig& config, ParamStore& store, const Axes& axes,
          const Layout& layout);

  /// y [received, hidden] and the activation a.
  Tensor forward(Context& ctx, const Dispatch& d, const Tensor& x, const Tensor& weights, Saved& saved,
                 Tensor& a) const;
  /// `a`: as forward gave it, or none (it is made again).
  Gradients backward(Context& ctx, const Dispatch& d, const Tensor& dy, const Saved& saved, const Tensor& a) const;

 private:
  struct Expert {
    LocalParam *gate, *up, *down;
  };
  using Weight = LocalParam* Expert::*;
  Fp8* fp8_of(const Context& ctx) const;
  Tensor activate(Context& ctx, const Saved& saved) const;
  Rows rows_of(Context& ctx, const Dispatch& d, const Tensor& x) const;
  Tensor across(Context& ctx, const Dispatch& d, const Rows& x, Weight w, bool transpose, int64_t width) const;
  void add_exactly(Context& ctx, const Dispatch& d, const Tensor& x, Weight w, const Tensor& sum) const;
  Tensor input_gradient(Context& ctx, const Dispatch& d, const Rows& dg, const Rows& du) const;
  Tensor weight_gradient(Context& ctx, const Dispatch& d, const Tensor& a, const Tensor& da) const;
  void defer_gradient(Context& ctx, const Dispatch& d, Weight w, const Rows& dy, const Rows& x) const;
  Tensor rounded_sum(Context& ctx, const Dispatch& d, const Tensor& exact, DType type, int64_t cols,
                     const char* site) const;
  std::vector<Range> blocks() const;

  std::vector<Expert> experts_;
  int64_t hidden_, ffn_ = 0;  ///< inner width on this rank
  int64_t block_;             ///< canonical block of the inner width
  ExpertEdge edge_;
};

}  // namespace orthant
