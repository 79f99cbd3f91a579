// The learning rate as a function of the step.
#pragma once

#include <cstdint>
#include <string>

namespace orthant {

enum class LrKind { constant, cosine, linear, wsd, inverse_sqrt };

/// The kind that a deck's optimizer.schedule names; UsageError for another word.
LrKind lr_kind(const std::string& name);

/// Peak and least rate, and lengths in steps. `decay_steps` counts from step 0, warm-up included (resolved: not 0 for
/// "the whole run").
struct LrSchedule {
  LrKind kind = LrKind::constant;
  double lr = 3e-4, min_lr = 0;
  int64_t warmup_steps = 0, decay_steps = 0, wsd_steps = 0;
};

/// The rate that step t = 1, 2, ... uses. Step t of the warm-up has lr t / warmup, so the first step already moves.
double lr_at(const LrSchedule& schedule, int64_t step);

}  // namespace orthant
