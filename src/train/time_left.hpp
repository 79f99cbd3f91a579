// How long the job may still run.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "orthant/deck.hpp"

namespace orthant {

/// Seconds in a span as Slurm prints it: D-HH:MM:SS, D-HH:MM, D-HH, HH:MM:SS, MM:SS or SS. Nothing for UNLIMITED, INVALID,
/// NOT_SET and all else that is no span.
std::optional<double> slurm_seconds(const std::string& text);

/// What a command prints on its first line (without a shell: `words` are the program and its arguments). Nothing when it
/// cannot be started, fails, or takes longer than `patience` seconds; then it is ended.
std::optional<std::string> first_line_of(const std::vector<std::string>& words, double patience);

/// Where TimeLeft looks; a test puts its own there.
struct TimeSources {
  std::function<double()> now;                                     ///< seconds since the epoch
  double begun;                                                    ///< when the program started, on the same clock
  std::function<std::optional<std::string>(const char*)> variable;  ///< of the environment
  std::function<std::optional<std::string>(const std::string& job)> queue;  ///< squeue's word on the time left of a job
};
/// The real ones.
TimeSources system_time();

/// The end of the job: run.time_limit (seconds from the start of the program), else SLURM_JOB_END_TIME, else what squeue
/// says once at the start (Slurm before 23.02 sets no such variable), else none.
class TimeLeft {
 public:
  /// Only rank 0's answer counts; elsewhere there is no limit, and nothing is asked.
  TimeLeft(const Deck& deck, bool lead);
  TimeLeft(std::optional<double> time_limit, TimeSources sources);
  /// True when what is left is less than the reserve. Of a scheduler's limit some seconds are the end of the job itself: it
  /// kills at its own time, which is not ours to the second.
  bool over(double step_seconds, double save_seconds) const;
  /// What must be left to go on: the longest save so far x 1.5, and two steps, in seconds.
  static double reserve(double step_seconds, double save_seconds) { return 1.5 * save_seconds + 2 * step_seconds; }
  static constexpr double closing_seconds = 5;
  /// Seconds left, or nothing without a limit.
  std::optional<double> left() const;

 private:
  TimeSources sources_;
  std::optional<double> end_;  ///< seconds since the epoch
  double closing_ = 0;         ///< seconds of a scheduler's limit that are not used
};

}  // namespace orthant
