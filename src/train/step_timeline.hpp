// A step of a plan on a time line, in the fixed times of run.timing = "sleep".
#pragma once

#include "train/session.hpp"

namespace orthant {

/// What the first rank of each stage does: units, gathers and sums, with the deck's run.sleep_ms and run.sleep_gbps.
/// `gathers_cost` false takes gathers of weights as free, to see what they add.
Timeline step_timeline(const RunPlan& plan, bool gathers_cost = true);

}  // namespace orthant
