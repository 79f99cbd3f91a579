// One save at a time, in front of the training or behind it.
//
//   training thread   start        F B of the next step   release_state   update   F B ...        finish
//   I/O thread              copy …………………                                  write ………………………… rename
//
// The I/O thread communicates on a communicator of its own and is the only one that touches HDF5 meanwhile. Its
// collective calls never wait for the training thread of any rank, so a save ends whatever the training waits for.
#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "checkpoint/state_copy.hpp"
#include "orthant/checkpoint.hpp"

namespace orthant {

/// Everything that one save needs. What the pieces point to must stay as it is until `release_state` returns.
struct SaveJob {
  std::string checkpoints_folder;
  int64_t step = 0;
  std::string job;
  std::vector<StatePiece> pieces;
  TrainState state;
  CheckpointExtras extras;
  SaveSettings settings;
};

class BackgroundSave {
 public:
  /// Collective over `comm`, which is duplicated. `copy_limit`: bytes of memory for a copy of the state; pieces
  /// beyond it are written before `release_state` returns.
  BackgroundSave(MPI_Comm comm, int64_t copy_limit);
  /// Waits for a save in flight, whatever becomes of it.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Begins a save; collective in that every rank starts the same. LogicError if one is in flight.
  void start(SaveJob job);
  /// Started, and `finish` not yet called.
  bool in_flight() const { return thread_.joinable(); }
  /// This rank's part of the save in flight has ended, well or not: `finish` will not wait.
  bool ended() const { return ended_; }
  /// Returns when the pieces are no longer looked at. Not collective; at once if nothing is in flight.
  void release_state();
  /// Waits for the end and gives the report, or throws what the save threw (agreed on all ranks, but for a fault of
  /// MPI).
  SaveReport finish();
  int64_t copy_bytes() const { return copy_.bytes(); }  ///< held for copies; call while nothing is in flight

 private:
  void run();
  void set_released();

  MPI_Comm comm_ = MPI_COMM_NULL;
  StateCopy copy_;
  SaveJob job_;
  std::thread thread_;
  std::mutex lock_;
  std::condition_variable signal_;
  bool released_ = true;
  std::atomic<bool> ended_ = false;
  SaveReport report_;
  std::exception_ptr error_;
};

}  // namespace orthant
