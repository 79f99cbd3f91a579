// What the axes of the mesh cost the steps of a run: waits in sight beside what was under way, and beside the plan.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "train/session.hpp"

namespace orthant {

class AxisCosts {
 public:
  /// A step: waits of each axis with more than one rank, mean over ranks, and what was under way on this one, seconds.
  struct Axis {
    AxisName name;
    double exposed = 0, under_way = 0;
  };
  void step(const std::vector<Axis>& axes);
  /// Lines for the console: means over the steps, the first of several left out (it has allocations and first touches in
  /// it). Beside them what the plan of run.timing = "sleep" says, and the part that comm.chunks cannot hide. Empty where a
  /// run has nothing to tell: no played times and products in one piece.
  std::string text(const RunPlan& plan) const;

 private:
  int64_t steps_ = 0;
  std::map<AxisName, Axis> first_, sum_;
};

/// The axis that people know, of one of a mesh's views: shards and replicas are dp's, for example.
AxisName public_axis(AxisName name);

}  // namespace orthant
