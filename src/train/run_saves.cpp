// See run_saves.hpp.
#include "train/run_saves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "orthant/error.hpp"
#include "support/helper_thread.hpp"

namespace orthant {

RunSaves::RunSaves(MPI_Comm comm, Session& session, Console& console, RunSavesSettings settings)
    : comm_(comm),
      session_(session),
      console_(console),
      settings_(std::move(settings)),
      background_(comm, settings_.copy_limit) {
  const StateView view(session);
  for (const StatePiece& p : view.pieces()) {
    if (p.writer) own_bytes_ += p.piece.elements() * static_cast<int64_t>(sizeof(float));
  }
  copy_bytes_ = std::min(own_bytes_, settings_.copy_limit);
  if (!threads_may_communicate()) settings_.async = false;
}

std::string RunSaves::text() const {
  if (settings_.async) {
    return fmt::format(
        "behind the training, from a copy of {} on rank 0{}", bytes_text(static_cast<double>(copy_bytes_)),
        copy_bytes_ < own_bytes_
            ? fmt::format(" of {}: memory allows no more, and the rest is written before the next update",
                          bytes_text(static_cast<double>(own_bytes_)))
            : "");
  }
  return threads_may_communicate() ? "training waits for them"
                                   : "training waits for them: this MPI library lets one thread communicate only "
                                     "(MPI_THREAD_MULTIPLE is needed for checkpoint.async)";
}

void RunSaves::wait_while(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  const auto count = [&] {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    stall_ += seconds;
    this_stall_ += seconds;
    waited_ += seconds;
  };
  try {
    work();
  } catch (...) {
    count();
    throw;
  }
  count();
}

void RunSaves::save(const TrainState& state, const CheckpointExtras& extras, bool wait) {
  finish();
  this_stall_ = 0;
  step_ = state.step;
  any_ = true;
  wait_while([&] {
    view_ = std::make_unique<StateView>(session_);
    SaveJob job{settings_.folder, state.step, settings_.job, view_->pieces(), state, extras, settings_.how};
    background_.start(std::move(job));
  });
  if (wait || !settings_.async) finish();
}

void RunSaves::release_state() {
  if (!view_) return;
  wait_while([&] {
    background_.release_state();
    view_.reset();
  });
}

void RunSaves::finish() {
  if (!in_flight()) return;
  std::string fault;
  wait_while([&] {
    background_.release_state();
    view_.reset();
    try {
      durable_ = background_.finish();
    } catch (const Error& e) {
      if (e.code() != Exit::data) throw;
      fault = e.what();
    }
  });
  last_failed_ = !fault.empty();
  if (last_failed_) {
    ++failed_;
    console_.fault(
        fmt::format("checkpoint at step {} failed (training goes on, {} so far): {}", step_, failed_, fault));
    return;
  }
  const SaveReport& report = *durable_;
  saved_step_ = step_;
  saved_folder_ = report.folder;
  longest_ = std::max(longest_, report.seconds);
  if (!report.note.empty()) console_.line("checkpoint: " + report.note);
  console_.line(fmt::format("saved {} ({} in {}, {:.2f} s, {:.2f} GB/s; training waited {:.3f} s)", report.folder,
                            bytes_text(static_cast<double>(report.bytes)),
                            report.files == 1 ? "1 file" : fmt::format("{} files", report.files), report.seconds,
                            report.gb_per_s(), this_stall_));
  if (hints_told_ || settings_.how.mpi_info.empty()) return;
  hints_told_ = true;
  std::string text;
  for (const auto& [key, value] : settings_.how.mpi_info) {
    const auto found = report.hints.find(key);
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", key,
                        found == report.hints.end() ? "not known to this MPI-IO" : found->second);
  }
  console_.line("checkpoint.mpi_info in effect: " + text);
}

}  // namespace orthant
