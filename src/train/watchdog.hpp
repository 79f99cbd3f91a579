// Ends a job that hangs, and says who is missing.
//
// A thread on each rank looks at the time a step takes. Past the limit the ranks' threads tell each other, on a
// communicator of their own, where their training threads are; rank 0 prints who waits in which call, who does not
// and who gave no word, and ends the job with exit 4, so that it can be requeued. The training threads may be stuck
// in MPI meanwhile.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "orthant/collectives.hpp"
#include "orthant/mesh.hpp"
#include "train/runner.hpp"

namespace orthant {

/// How long a step may take: `given`, or if that is 0 ten times the median of `seconds` (the last steps), and at
/// least a minute; ten minutes as long as there are less than three.
double step_limit(double given, std::vector<double> seconds);

/// Where a rank is, as it tells rank 0.
struct RankState {
  int rank = 0;
  int64_t step = 0;    ///< under way, or the last one
  std::string at;      ///< what it waits for or does: ranks at one place have the same text
  std::string calls;   ///< its last calls, one a line
  bool waits = false;  ///< in a collective call
};

/// The report for people. `states`: of the ranks that answered. `who(rank)`: coordinates and host.
std::string hang_report(double seconds, double limit, int ranks, std::vector<RankState> states,
                        const std::function<std::string(int)>& who);

class Watchdog {
 public:
  /// Collective over the mesh. `given`: guard.watchdog_s. `on_hang` runs on rank 0 before the job is ended, on the
  /// watchdog's thread. `traffic` and `timers` outlive the object.
  Watchdog(const Mesh& mesh, const Traffic& traffic, const Timers& timers, double given,
           std::function<void(const std::string& report)> on_hang);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// The clock of a step starts; it may take `times` as long as a training step, and `least` seconds in any case.
  void begin(int64_t step, double times = 1, double least = 0);
  /// It stops. `counts`: it was a training step, whose time the limit of later ones follows from.
  void end(bool counts = true);
  double limit() const;

 private:
  using Clock = std::chrono::steady_clock;
  void watch();
  double limit_now() const;  // under the lock
  bool late() const;
  bool asked() const;
  void report();
  RankState state() const;
  std::vector<RankState> collect() const;

  int rank_, ranks_;
  std::vector<std::string> names_;  // rank 0: coordinates and host of each
  const Traffic& traffic_;
  const Timers& timers_;
  double given_;
  std::function<void(const std::string&)> on_hang_;
  MPI_Comm comm_ = MPI_COMM_NULL;  // null: this MPI lets one thread communicate only
  mutable std::mutex lock_;
  std::condition_variable signal_;
  bool ends_ = false, armed_ = false;
  int64_t step_ = 0;
  double times_ = 1, least_ = 0;
  Clock::time_point begin_;
  Clock::duration lost_{};  // time in which this process did not run
  std::vector<double> seconds_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace orthant
