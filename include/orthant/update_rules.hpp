// The update of one parameter element by AdamW and by SGD, shared by the host and the device (numerics of
// Backend::adamw and Backend::sgd). A is float or double; constants are formed in double and rounded to A once.
#pragma once

#include "orthant/backend.hpp"
#include "orthant/elementwise.hpp"

namespace orthant {

/// p *= 1 - lr wd;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr (m / bias1) / (sqrt(v / bias2) + eps).
template <class A>
struct AdamwRule {
  explicit AdamwRule(const AdamwStep& s)
      : grad_scale(A(s.grad_scale)),
        decay(A(1 - s.lr * s.weight_decay)),
        beta1(A(s.beta1)),
        rest1(A(1 - s.beta1)),
        beta2(A(s.beta2)),
        rest2(A(1 - s.beta2)),
        step(A(s.lr / s.bias1)),
        root(A(1 / ::sqrt(s.bias2))),
        eps(A(s.eps)) {}

  ORTHANT_HD void apply(A& p, A& m, A& v, A grad) const {
    const A g = grad * grad_scale;
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * (g * g);
    p = p * decay - step * m / (sqrt_(v) * root + eps);
  }

  A grad_scale, decay, beta1, rest1, beta2, rest2, step, root, eps;
};

/// p *= 1 - lr wd;  v = momentum v + g;  p -= lr v. Without a velocity v = g.
template <class A>
struct SgdRule {
  explicit SgdRule(const SgdStep& s)
      : grad_scale(A(s.grad_scale)), decay(A(1 - s.lr * s.weight_decay)), momentum(A(s.momentum)), lr(A(s.lr)) {}

  ORTHANT_HD void apply(A& p, A& velocity, A grad) const {
    velocity = momentum * velocity + grad * grad_scale;
    p = p * decay - lr * velocity;
  }
  ORTHANT_HD void apply(A& p, A grad) const { p = p * decay - lr * (grad * grad_scale); }

  A grad_scale, decay, momentum, lr;
};

}  // namespace orthant
