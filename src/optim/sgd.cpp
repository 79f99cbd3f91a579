// SGD with momentum: v = momentum v + g, p *= 1 - lr decay, p -= lr v.
#include "optim/optimizer.hpp"

namespace orthant {

Optimizer sgd_optimizer() {
  return {"sgd", {"velocity"}, [](Backend& be, const OptimizerSettings& s, double lr, int64_t, double grad_scale, LocalParam& p, const Tensor& grad) {
            SgdStep a{lr, s.momentum, p.param.decay ? s.weight_decay : 0.0, grad_scale};
            be.sgd(a, p.master, p.slots[0], grad, p.own_weight.data() == p.master.data() ? Tensor() : p.own_weight);
          }};
}

}  // namespace orthant
