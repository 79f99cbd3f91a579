// Runs the list of actions of one stage: F, B, W of units, G and R, and the messages between stages that follow from
// them.
//
// What a virtual stage sends is posted and not waited for until the step's end; what it receives is posted one input
// ahead, before the work in front of it, with a tag for each message. So no order of sends can block, and the checker's
// proof (schedule/check.cpp) is about the order of inputs alone.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "optim/sharding.hpp"
#include "support/trace.hpp"
#include "train/session.hpp"

namespace orthant {

/// Seconds by phase, for timers.txt.
class Timers {
 public:
  void add(const std::string& phase, double seconds) { seconds_[phase] += seconds; }
  /// What the training thread is at, for a hang report of another thread; returns what it was at before.
  const char* enter(const char* phase) { return now_.exchange(phase); }
  const char* now() const { return now_; }
  const std::map<std::string, double>& seconds() const { return seconds_; }
  /// Where phases are drawn (log.trace), or null.
  Trace* trace = nullptr;

 private:
  std::map<std::string, double> seconds_;
  std::atomic<const char*> now_ = "";
};

/// Adds the time it lives to a phase.
class Timed {
 public:
  Timed(Timers& timers, const char* phase) : timers_(timers), phase_(phase), before_(timers.enter(phase)), begin_(std::chrono::steady_clock::now()) {}
  ~Timed() {
    const double s = seconds();
    timers_.add(phase_, s);
    timers_.enter(before_);
    if (timers_.trace) {
      const int64_t end = Trace::now_ns();
      timers_.trace->phase(phase_, end - static_cast<int64_t>(s * 1e9), end, detail_);
    }
  }
  /// What a trace shows beside the phase: words of JSON.
  void detail(std::string words) { detail_ = std::move(words); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  Timers& timers_;
  const char* phase_;
  const char* before_;
  std::string detail_;
  std::chrono::steady_clock::time_point begin_;
};

class Runner {
 public:
  using MakeBatch = std::function<MicroBatch(int64_t)>;
  Runner(Session& session, Sharding& sharding, Timers& timers) : s_(session), sharding_(sharding), timers_(timers) {}

  /// Runs `list`. Losses of the micro-batches, which are zero on a stage without the head.
  std::vector<LossSum> run(const ActionList& list, const MakeBatch& micro_batch, bool train);
  /// Seconds of the last run spent in F, B and W, and from its first action to the end of the last.
  double busy() const { return busy_; }
  double span() const { return span_; }

 private:
  struct Key {
    int64_t virtual_stage, micro;
    bool backward;
    auto operator<=>(const Key&) const = default;
  };
  struct Input {
    Tensor x;
    Pending pending;
    bool message = false;  ///< else handed over by a chunk of this stage
  };
  int64_t virtual_stage(int64_t chunk) const { return s_.plan.pipeline.virtual_stage(s_.layout.at().pp, chunk); }
  int64_t units(int64_t chunk) const { return static_cast<int64_t>(s_.stage->chunks[static_cast<size_t>(chunk)].units.size()); }
  const Unit& unit(const Action& a) const { return *s_.stage->chunks[static_cast<size_t>(a.chunk)].units[static_cast<size_t>(a.unit)]; }
  /// The message or hand-over that `a` begins with, if it does.
  bool takes_input(const Action& a, Key& key) const;
  void post_next_receive(const ActionList& list);
  Tensor take_input(const Key& key, const ActionList& list);
  void give(const Key& to, const Tensor& x);
  int tag(const Key& key) const;
  void forward(const Action& a, const ActionList& list, bool train);
  void backward(const Action& a, const ActionList& list);
  void weights(const Action& a);
  void open_gradients(const Unit& unit);
  template <class Work>
  void work(const Action& a, const char* phase, Work&& run);
  /// In the planned times of run.timing = "sleep".
  void play(const Action& a, const std::function<void()>& run);

  Session& s_;
  Sharding& sharding_;
  Timers& timers_;
  std::map<int64_t, MicroBatch> batch_;
  std::map<std::pair<int64_t, int64_t>, Tensor> flowing_;  ///< [chunk, micro]: between the units of a chunk
  std::map<std::pair<int64_t, int64_t>, std::vector<std::unique_ptr<Stash>>> stash_;
  std::map<std::pair<int64_t, int64_t>, std::map<int64_t, std::vector<std::function<void()>>>> deferred_;
  std::map<Key, Input> inputs_;
  std::deque<Pending> sends_;
  std::vector<LossSum> losses_;
  size_t next_receive_ = 0;
  double busy_ = 0, span_ = 0;
};

}  // namespace orthant
