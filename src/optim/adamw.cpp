// AdamW (Loshchilov and Hutter 2019), decoupled decay first (src/README.md, number 5).
#include <cmath>

#include "optim/optimizer.hpp"

namespace orthant {

Optimizer adamw_optimizer() {
  return {"adamw", {"m", "v"}, [](Backend& be, const OptimizerSettings& s, double lr, int64_t step, double grad_scale, LocalParam& p, const Tensor& grad) {
            AdamwStep a{lr, s.beta1, s.beta2, s.eps, p.param.decay ? s.weight_decay : 0.0,
                        1 - std::pow(s.beta1, static_cast<double>(step)), 1 - std::pow(s.beta2, static_cast<double>(step)), grad_scale};
            be.adamw(a, p.master, p.slots[0], p.slots[1], grad, p.own_weight.data() == p.master.data() ? Tensor() : p.own_weight);
          }};
}

}  // namespace orthant
