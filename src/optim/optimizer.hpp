// An optimiser: how many slots a parameter has, and one update.
#pragma once

#include <string>
#include <vector>

#include "orthant/store.hpp"

namespace orthant {

/// What the deck says (section optimizer).
struct OptimizerSettings {
  std::string name = "adamw";
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, momentum = 0.9, weight_decay = 0.1, clip = 1.0;
};

struct Optimizer {
  std::string name;
  std::vector<std::string> slots;  ///< names in checkpoints: optimizer/<slot>/<parameter>
  /// Updates p with `grad` times `grad_scale`; `step` counts from 1.
  void (*update)(Backend& be, const OptimizerSettings& s, double lr, int64_t step, double grad_scale, LocalParam& p, const Tensor& grad);
};

Optimizer adamw_optimizer();
Optimizer sgd_optimizer();
/// UsageError naming optimizer.name for one that is not in the list.
const Optimizer& optimizer(const std::string& name);

}  // namespace orthant
