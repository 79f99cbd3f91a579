// The divergence guard: which steps are not taken, and when the run goes back to its last checkpoint.
//
// A step whose loss or gradient norm is not finite is never taken. With guard.spike_factor > 0 neither is one whose
// loss is more than that many times its running median, or whose norm is more than ten times as many: norms of healthy
// runs scatter by small factors from step to step, which clipping takes care of. Both count as bad steps; guard.max_skips bad steps in
// a row are allowed, and guard.rollback_after of them lead back to the last checkpoint.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "orthant/checkpoint.hpp"
#include "orthant/deck.hpp"

namespace orthant {

class StepGuard {
 public:
  explicit StepGuard(const Deck& deck);

  /// What makes the step one that is not taken, in words for people; "" = nothing. Numbers are those before the update.
  std::string judge(double loss, double grad_norm) const;
  /// The step is over: `bad` is what `judge` said. Good steps make up the running medians.
  void count(double loss, double grad_norm, const std::string& bad);

  /// It compares with medians, so that `judge` is worth calling with finite numbers.
  bool watches_spikes() const { return factor_ > 0; }
  int64_t bad_in_a_row() const { return bad_; }
  /// More than guard.max_skips bad steps in a row: the text of the error, else "".
  std::string exhausted(int64_t step) const;
  /// As many bad steps in a row as guard.rollback_after.
  bool wants_rollback() const { return rollback_after_ > 0 && bad_ >= rollback_after_; }

  /// The run goes back to checkpoint `step`, by data that it has seen (`again`) or behind it. Text of an error (exit 5)
  /// when that has been tried before and would end alike, else "".
  std::string going_back(int64_t step, bool again);

  /// Counter and medians travel with the checkpoint, so that a resumed run judges as one that was not stopped.
  void store(TrainState& state) const;
  void load(const TrainState& state);

  static constexpr double norm_over_loss = 10;  ///< factor of the norm / guard.spike_factor
  static constexpr size_t window = 64;    ///< good steps in a median
  static constexpr size_t judges_from = 8;  ///< fewer say nothing yet

 private:
  std::string compare(const char* what, double x, const std::deque<double>& good, double factor) const;
  double factor_;
  int64_t max_skips_, rollback_after_;
  int64_t bad_ = 0;
  std::string last_bad_;
  std::deque<double> losses_, norms_;  // of the last good steps
  int64_t back_to_ = -1, times_back_ = 0;
};

}  // namespace orthant
