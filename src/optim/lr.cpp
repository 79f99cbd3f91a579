// Learning rate schedules: linear warm-up, then constant, cosine, linear, warm-up-stable-decay or inverse square
// root.
#include "optim/lr.hpp"

#include <algorithm>

#include "orthant/elementwise.hpp"
#include "orthant/error.hpp"

namespace orthant {

LrKind lr_kind(const std::string& name) {
  if (name == "constant") return LrKind::constant;
  if (name == "cosine") return LrKind::cosine;
  if (name == "linear") return LrKind::linear;
  if (name == "wsd") return LrKind::wsd;
  if (name == "inverse_sqrt") return LrKind::inverse_sqrt;
  throw UsageError(
      "optimizer.schedule = \"" + name + "\" is not known; it is one of constant, cosine, linear, wsd, inverse_sqrt",
      true);
}

double lr_at(const LrSchedule& s, int64_t step) {
  ORTHANT_ENSURE(step >= 1, "steps are counted from 1");
  const double t = static_cast<double>(step), warmup = static_cast<double>(s.warmup_steps);
  if (step <= s.warmup_steps) return s.lr * t / warmup;
  const double decay = static_cast<double>(s.decay_steps), wsd = static_cast<double>(s.wsd_steps);
  const double p = s.decay_steps <= s.warmup_steps ? 1 : std::min(1.0, (t - warmup) / (decay - warmup));
  const double range = s.lr - s.min_lr;
  switch (s.kind) {
    case LrKind::constant:
      return s.lr;
    // our own cosine, so that every machine's run has the same rates
    case LrKind::cosine:
      return s.min_lr + range * (1 + cos_(3.141592653589793 * p)) / 2;
    case LrKind::linear:
      return s.min_lr + range * (1 - p);
    case LrKind::wsd:
      if (step <= s.decay_steps - s.wsd_steps) return s.lr;
      return s.lr - range * std::min(1.0, (t - decay + wsd) / std::max(1.0, wsd));
    case LrKind::inverse_sqrt:
      return std::max(s.min_lr, s.lr * sqrt_(std::max(warmup, 1.0) / t));
  }
  throw LogicError("learning rate schedule without a formula");
}

}  // namespace orthant
