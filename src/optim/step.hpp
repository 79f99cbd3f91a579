// The end of a training step: sum the gradients over ranks, take their norm, clip, update. In that order.
#pragma once

#include "optim/optimizer.hpp"
#include "orthant/context.hpp"

namespace orthant {

/// Gradients of all units summed over the axes that each parameter's record implies, at once: what the R actions of a
/// schedule do one by one.
void sum_gradients(Context& ctx, ParamStore& store);
/// L2 norm over every element of the model's gradient counted once (src/README.md, number 6); the same on every rank. NaN or
/// infinite when a gradient is; `not_finite` then names the first such parameter (in reproducible mode, where values that
/// are not finite never enter a sum, it stays empty).
double gradient_norm(Context& ctx, ParamStore& store, std::string* not_finite = nullptr);
/// Clips by `norm`, updates own rows of all parameters, and makes whole weights whole again.
void update_parameters(Context& ctx, ParamStore& store, const Optimizer& optimizer, const OptimizerSettings& settings, double lr, int64_t step,
                       double norm);

}  // namespace orthant
