// See background_save.hpp.
#include "checkpoint/background_save.hpp"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "checkpoint/write.hpp"
#include "orthant/error.hpp"
#include "support/agree.hpp"
#include "support/helper_thread.hpp"

namespace orthant {

/// Once the state is copied, training has the first right to a core that both want.
static constexpr int background_nice = 5;

BackgroundSave::BackgroundSave(MPI_Comm comm, int64_t copy_limit) : copy_(copy_limit) {
  ORTHANT_MPI(MPI_Comm_dup(comm, &comm_));
}

BackgroundSave::~BackgroundSave() {
  if (thread_.joinable()) thread_.join();
  if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
}

void BackgroundSave::start(SaveJob job) {
  ORTHANT_ENSURE(!in_flight(), "a save begins while another one is in flight");
  job_ = std::move(job);
  released_ = false;
  ended_ = false;
  error_ = nullptr;
  report_ = {};
  thread_ = helper_thread("checkpoint", [this] { run(); });
}

void BackgroundSave::set_released() {
  {
    const std::lock_guard guard(lock_);
    released_ = true;
  }
  signal_.notify_all();
}

void BackgroundSave::run() {
  const PatientThread patient;
  try {
    const auto start = std::chrono::steady_clock::now();
    size_t live = 0;
    collectively(comm_, [&] {
      job_.pieces = copy_.take(std::move(job_.pieces));
      live = copy_.live();
      if (live > 0) return;
      set_released();
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), background_nice);
    });
    const double copying = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    report_ = write_checkpoint(comm_, job_.checkpoints_folder, job_.step, job_.job, job_.pieces, job_.state,
                               job_.extras, job_.settings, [&](size_t i) {
                                 if (i + 1 == live) set_released();
                               });
    report_.seconds += copying;
  } catch (...) {
    error_ = std::current_exception();
  }
  set_released();  // a save that failed early, too
  ended_ = true;
}

void BackgroundSave::release_state() {
  if (!in_flight()) return;
  std::unique_lock guard(lock_);
  signal_.wait(guard, [this] { return released_; });
}

SaveReport BackgroundSave::finish() {
  ORTHANT_ENSURE(in_flight(), "no save is in flight");
  thread_.join();
  job_ = {};
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return report_;
}

}  // namespace orthant
