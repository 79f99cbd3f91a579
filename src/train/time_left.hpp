// How long the job may still run.
#pragma once

#include "orthant/deck.hpp"

namespace orthant {

/// The end of the job: run.time_limit (seconds from the start of the program), else SLURM_JOB_END_TIME, else none.
class TimeLeft {
 public:
  /// Only rank 0's answer counts; elsewhere there is no limit.
  TimeLeft(const Deck& deck, bool lead);
  /// True when what is left is less than a save (the longest seen x 1.5) and two steps.
  bool over(double step_seconds, double save_seconds) const;

 private:
  double end_ = 0;  ///< seconds since the epoch; 0 = no limit
};

}  // namespace orthant
