// The wall time of a run over all its lives, put into bins, and the stops between the lives.
//
//   begin ...... ready ........................ sign ......... end ............ begin ...... ready ....
//   | start      | trained, saving (waits)      | detection    | gap            | restart    |
//
// What lies behind the step that the next life restores moves from trained to lost at its `ready`. Everything follows
// from a list of events, one a line in goodput.jsonl, so that the program, its next life and `orthant report` count alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

/// Why a life ended, or training went back. Only `planned` is no failure; `refused` (exit 2: deck, usage) is a failure
/// of nobody's machine.
enum class StopKind { planned, node, rank, hang, io, numerics, refused, other };
constexpr int stop_kinds = 8;
const char* name_of(StopKind kind);

/// Seconds of wall time. Each second from the first begin on is in exactly one bin.
struct TimeBins {
  double trained = 0;    ///< steps that count, validation included
  double saving = 0;     ///< training waited for checkpoints or exports
  double lost = 0;       ///< steps that were done again
  double start = 0;      ///< until the first life that came so far began to train
  double restart = 0;    ///< start and load of later lives, and going back within a life
  double detection = 0;  ///< from the last sign of training to the end of the job; an orderly end closes down in it
  double gap = 0;        ///< from the end of a life to the begin of the next: queue and requeue
  double idle = 0;       ///< the run was finished, and later given more steps
  double total() const { return trained + saving + lost + start + restart + detection + gap + idle; }
  /// Effective training time: the share of `trained`; idle time does not count. 1 for a run without any time.
  double effective() const;
  /// In which the machine was held: all but gap and idle.
  double held() const { return total() - gap - idle; }
};

struct Stop {
  StopKind kind = StopKind::other;
  double t = 0;  ///< of the end, seconds since the epoch
  int64_t life = 0, step = 0;
  std::string reason;
  bool over = false;  ///< training goes on; else the seconds below are those so far
  double detection = 0, gap = 0, start = 0, load = 0, lost = 0;
  double recover() const { return detection + gap + start + load + lost; }
};

struct GoodputEvent {
  enum class Kind { begin, ready, save, rollback, end, killed };
  Kind kind = Kind::begin;
  double t = 0;      ///< seconds since the epoch
  int64_t step = 0;  ///< ready: restored; save: saved; rollback: gone back to; end, killed: the last one known
  // begin
  int64_t life = 0, ranks = 0, nodes = 0;
  std::string job;
  // ready, rollback: seconds of loading
  double load = 0;
  // save, rollback, end, killed: of this life so far
  double waited = 0;               ///< seconds that training waited for checkpoints and exports
  double stall = 0;                ///< of these: for checkpoints that `saves` counts
  int64_t saves = 0;               ///< begun in the midst of training (the last one of a life, waited for, is none)
  int64_t durables = 0;            ///< complete
  double durable = 0;              ///< seconds from begin to complete, their sum
  // end, killed
  double sign = 0;                 ///< last sign of training
  std::string state, reason;       ///< as in status.json; rollback has a reason too
  int code = 0;                    ///< exit code; killed: the launcher's, or -1
  StopKind stop = StopKind::other; ///< killed
};

/// One line of goodput.jsonl, with its newline.
std::string to_line(const GoodputEvent& event);
/// Nothing for a line that is torn or none of ours.
std::optional<GoodputEvent> parse_event(const std::string& line);
/// Class of the end of a life that the program itself saw (exit codes of error.hpp). `reason`: as in status.json.
StopKind kind_of_end(int code, const std::string& reason);

class GoodputLedger {
 public:
  enum class Phase { none, starting, training, ended, finished };

  void apply(const GoodputEvent& event);

  Phase phase() const { return phase_; }
  /// As of `t`, which is not before the last event, with `waited` seconds of waiting so far in this life.
  TimeBins bins(double t, double waited) const;
  /// As of the last event.
  const TimeBins& bins() const { return bins_; }
  const std::vector<Stop>& stops() const { return stops_; }
  int64_t lives() const { return lives_; }
  double first() const { return first_; }           ///< time of the first begin
  double last() const { return last_; }             ///< time of the last event
  double life_begin() const { return life_begin_; }
  int64_t life() const { return life_; }            ///< number of the last life
  int64_t nodes() const { return nodes_; }          ///< of the last life; 1 where it did not tell
  int64_t restored() const { return restored_; }    ///< step at which the last life began to train
  double waited() const { return waited_; }         ///< in this life, as of the last event
  int64_t step() const { return step_; }            ///< the last one known
  int64_t steps() const { return step_ - base_; }   ///< steps behind `trained`
  /// Held time x nodes, summed over the lives. `bins`: as of now, for the part of the last life.
  double node_seconds(const TimeBins& bins) const;
  int64_t saves() const { return saves_; }
  double mean_stall() const { return saves_ ? stall_ / static_cast<double>(saves_) : 0; }  ///< seconds a save
  int64_t durables() const { return durables_; }
  double mean_durable() const { return durables_ ? durable_ / static_cast<double>(durables_) : 0; }

 private:
  struct Place {
    int64_t step;
    double trained;
  };
  void begin(const GoodputEvent& e);
  void ready(const GoodputEvent& e);
  void rollback(const GoodputEvent& e);
  void end(const GoodputEvent& e);
  void count(const GoodputEvent& e);
  void elapse(double t, double waited);
  double go_back(int64_t step);
  double trained_at(int64_t step) const;
  void push(int64_t step);

  Phase phase_ = Phase::none;
  TimeBins bins_;
  std::vector<Stop> stops_;
  std::vector<Place> places_;  // trained seconds at steps that can be gone back to, oldest first
  bool trained_once_ = false;  // some life came as far as training
  int64_t lives_ = 0, life_ = 0, nodes_ = 1, restored_ = 0, step_ = 0, base_ = 0;
  double first_ = 0, last_ = 0, life_begin_ = 0, waited_ = 0, node_seconds_ = 0;
  double held_before_ = 0;  // held time of the lives before the last
  int64_t saves_ = 0, durables_ = 0, life_saves_ = 0, life_durables_ = 0;
  double stall_ = 0, durable_ = 0, life_stall_ = 0, life_durable_ = 0;
};

}  // namespace orthant
