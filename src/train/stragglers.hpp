// Which ranks are slow: the time each spends computing, compared with the others of its stage.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "orthant/mesh.hpp"

namespace orthant {

struct SlowRank {
  int rank = 0;
  double ratio = 1;  ///< of its time to the median of the others of its stage
};
/// Ranks that took at least `factor` times the median of the others of their stage, the slowest first. `seconds` and
/// `stage` have an entry a rank. A stage of one rank has nobody to compare with.
std::vector<SlowRank> slow_ranks(const std::vector<double>& seconds, const std::vector<int64_t>& stage, double factor);

/// Watches them in windows of steps. A rank is told when it was slow in two windows in a row (one is noise), once until it
/// has caught up.
class Stragglers {
 public:
  static constexpr int64_t window = 16;
  static constexpr double factor = 1.25;

  /// `names`: of all ranks, for messages; on rank 0.
  Stragglers(const Mesh& mesh, std::vector<std::string> names);
  /// Seconds that this rank computed in a step, without waits. At the end of a window: lines for the console, on rank 0.
  /// Collective every `window` steps.
  std::vector<std::string> step(double seconds);
  /// Of the last window, on rank 0: the slowest rank there was.
  const SlowRank& slowest() const { return slowest_; }

 private:
  MPI_Comm comm_;
  bool lead_;
  std::vector<std::string> names_;  // rank 0: coordinates and host
  std::vector<int64_t> stage_;
  double seconds_ = 0;
  int64_t steps_ = 0;
  std::vector<int> windows_;  // rank 0: in a row in which a rank was slow
  SlowRank slowest_;
};

}  // namespace orthant
