// The checkpoints of a run under way: when training waits for them, what is told, and what a failure means.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/background_save.hpp"
#include "train/console.hpp"
#include "train/session.hpp"
#include "train/state.hpp"

namespace orthant {

struct RunSavesSettings {
  std::string folder, job;
  SaveSettings how;
  bool async = true;       ///< write behind the training
  int64_t copy_limit = 0;  ///< bytes a rank may take for a copy of its state
};

class RunSaves {
 public:
  /// Collective over `comm`. `session` outlives the object, and no update may run without `release_state` before it.
  RunSaves(MPI_Comm comm, Session& session, Console& console, RunSavesSettings settings);

  /// Saves `state`, which has the step. A save in flight is waited for, and told, first. With `wait`, or without
  /// async, this one is complete, or has failed, on return. Collective.
  void save(const TrainState& state, const CheckpointExtras& extras, bool wait);
  /// Waits until the weights and optimiser state may change.
  void release_state();
  /// A save is in flight.
  bool in_flight() const { return background_.in_flight(); }
  /// In flight, and this rank's part of it has not ended.
  bool busy() const { return in_flight() && !background_.ended(); }
  /// Waits for the save in flight, if there is one, and tells how it went: a failed one is told, counted and does not
  /// end the run. Collective.
  void finish();

  /// Seconds that training waited in here since it was asked last.
  double take_stall() { return std::exchange(stall_, 0.0); }
  /// Of a save that became durable since it was asked last.
  std::optional<SaveReport> take_durable() { return std::exchange(durable_, std::nullopt); }

  bool any() const { return any_; }  ///< a save was begun in this life
  bool last_failed() const { return last_failed_; }
  int64_t saved_step() const { return saved_step_; }  ///< of the last good one of this life, or -1
  const std::string& saved_folder() const { return saved_folder_; }  ///< its folder, or ""; on all ranks
  double longest() const { return longest_; }         ///< seconds of the longest save
  double waited() const { return waited_; }           ///< seconds in all that training waited in here
  double copy_bytes() const { return in_flight() ? static_cast<double>(copy_bytes_) : 0; }
  /// For the header: how saves are made.
  std::string text() const;

 private:
  void wait_while(const std::function<void()>& work);

  MPI_Comm comm_;
  Session& session_;
  Console& console_;
  RunSavesSettings settings_;
  int64_t own_bytes_ = 0, copy_bytes_ = 0;
  std::unique_ptr<StateView> view_;  // of the save that still looks at live memory
  BackgroundSave background_;        // after view_, which it has to end before
  double stall_ = 0, this_stall_ = 0, waited_ = 0, longest_ = 0;
  std::optional<SaveReport> durable_;
  bool any_ = false, last_failed_ = false, hints_told_ = false;
  int64_t failed_ = 0, saved_step_ = -1, step_ = 0;
  std::string saved_folder_;
};

}  // namespace orthant
