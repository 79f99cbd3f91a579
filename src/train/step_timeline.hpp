// A step of a plan on a time line, in the fixed times of run.timing = "sleep".
#pragma once

#include "train/session.hpp"

namespace orthant {

/// What each stage does, and what an axis costs.
struct PlayedStep {
  Timeline timeline;
  struct Axis {
    AxisName name;
    double exposed = 0;  ///< seconds a step that a rank waits for it, mean over the stages' first ranks
    double wire = 0;     ///< seconds that its bytes take, likewise
  };
  std::vector<Axis> axes;  ///< those of tp, cp, pp, dp and ep that have more than one rank
  double gathers = 0;      ///< seconds a step that gathers of weights add to the timeline's length
};

/// Units, gathers and sums of the first rank of each stage, with the deck's run.sleep_ms and run.sleep_gbps. Collectives
/// within a unit stand where its products leave them in sight (WorkClock); what dp costs is that of ranks that never wait
/// for another stage.
PlayedStep played_step(const RunPlan& plan);

}  // namespace orthant
