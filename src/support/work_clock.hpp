// What a device would be at if its work took planned times: for run.timing = "sleep", and for plans of such runs.
//
// Operations put their time behind the work that is there; collectives begin when the work before them would be done, and
// a wait for one puts nothing in between but what is missing. So one product of a layer hides another's collective, as on
// a device, though nothing is computed. Times are those of the steady clock where a run sleeps, and begin at 0 in a plan.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <thread>

namespace orthant {

class WorkClock {
 public:
  /// `real`: work begins no earlier than now, and `catch_up` sleeps.
  explicit WorkClock(bool real) : real_(real) {}

  static int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  /// Seconds that a floating-point operation takes from here on.
  void rate(double seconds_per_flop) { rate_ = seconds_per_flop; }
  /// An operation of the device.
  void operation(double flops) {
    flops_ += flops;
    put(flops * rate_);
  }
  void put(double seconds) { done_ = ready() + static_cast<int64_t>(std::llround(seconds * 1e9)); }
  /// When the work so far is done, ns.
  int64_t ready() const { return real_ ? std::max(done_, now_ns()) : done_; }
  /// The work behind waits for `due`. Seconds of nothing in between.
  double wait_until(int64_t due) {
    const int64_t from = ready();
    done_ = std::max(from, due);
    return static_cast<double>(done_ - from) * 1e-9;
  }
  /// Sleeps until the work so far is done; nothing in a plan.
  void catch_up() const {
    if (real_) std::this_thread::sleep_until(std::chrono::steady_clock::time_point(std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::nanoseconds(done_))));
  }
  /// Of all operations so far.
  double flops() const { return flops_; }

 private:
  bool real_;
  double rate_ = 0, flops_ = 0;
  int64_t done_ = 0;
};

}  // namespace orthant
