// A mixture layer: a router sends each token to a few of many experts, which lie on the ranks of ep; beside them
// stand shared experts that every token passes.
//
//   chosen, w = router(x_SD);   y_SD = sum over the chosen e of w_e expert_e(x_SD)  [ + shared(x_SD) ]
//
// etp = 1: a rank routes the tokens of its shard, over all of tp x cp x dp that ep takes. etp = tp: tokens, choices
// and weights are gathered along tp, every rank of tp routes the same ones, and its experts hold a part of each inner
// width. Rows of tokens travel while the shared experts compute. Nothing is padded: a rank may send or get no row at
// all.
//
// Talks on: ep (rows out and back), tp (ExpertEdge; FfnEdge of the shared experts), and the router's control numbers.
// Saved: x_SD, what the parts save, and where each row went.
#pragma once

#include <optional>

#include "layers/experts.hpp"
#include "layers/mlp.hpp"
#include "layers/router.hpp"

namespace orthant {

class Moe {
 public:
  struct Saved {
    Tensor x;  ///< [tokens of the shard, hidden]; dropped by selective recompute
    Tensor a;  ///< [received, expert width of this rank]; dropped by selective recompute
    Router::Saved router;
    Dispatch dispatch;
    Experts::Saved experts;
    Mlp::Saved shared;  ///< without its x, which is the one above
  };

  static std::vector<Param> params(const std::string& prefix, const ModelConfig& config);
  /// `layer` is the number of the block.
  Moe(const std::string& prefix, const ModelConfig& config, int64_t layer, ParamStore& store, const Axes& axes,
      const Layout& layout);

  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  Tensor backward(Context& ctx, const Tensor& dy, const Saved& saved) const;

 private:
  int64_t most_rows(const Context& ctx, const RoutingShape& shape) const;
  Tensor enter(Context& ctx, const Tensor& x, const char* site) const;
  Leaving leave(Context& ctx, const Tensor& y, const char* site) const;
  Tensor own_picks(Context& ctx, const Tensor& d_weights) const;
  bool cut() const { return edge_.cut().size() > 1; }

  std::string name_;
  MoeConfig moe_;
  Router router_;
  Experts experts_;
  std::optional<Mlp> shared_;
  const Axis* ep_;
  ExpertEdge edge_;
};

}  // namespace orthant
