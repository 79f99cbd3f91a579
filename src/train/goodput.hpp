// Bookkeeping of a run's wall time by the program itself: goodput.jsonl in the run folder, and numbers for status.json.
// On rank 0. A step costs no file access; a begin, a save and an end append one line each. A disk that is full never
// ends training: it is told once, and the lines are kept for later.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "train/goodput_ledger.hpp"

namespace orthant {

/// What training waits for.
enum class Wait {
  save,        ///< a checkpoint in the midst of training: the price of a save
  final_save,  ///< the last checkpoint of a life, always waited for
  exports,     ///< weights for other programs
};

struct GoodputFacts {
  int64_t life = 1;  ///< RunFolder::lives()
  std::string job;
  int64_t ranks = 1, nodes = 1;
  double begun = 0;  ///< when the program was loaded, seconds since the epoch (system_time().begun); 0: now
};

double wall_clock();  ///< seconds since the epoch

class Goodput {
 public:
  /// A life begins. Reads what the lives before wrote, and closes one that was killed from what it left; so it comes
  /// before the first status.json of this life. `folder`: of the run, with its lock taken.
  Goodput(const std::string& folder, GoodputFacts facts, std::function<double()> clock = wall_clock);
  ~Goodput();
  Goodput(const Goodput&) = delete;
  Goodput& operator=(const Goodput&) = delete;

  /// Training begins behind `step`, after `load` seconds of reading the checkpoint (0: from initial weights).
  void ready(int64_t step, double load);
  /// A step, or a validation pass, is over.
  void step(int64_t step);
  /// Training has waited, just now or in the step under way.
  void stalled(double seconds, Wait what);
  /// A checkpoint of `step`, the last one done, begins. Call it before the save itself.
  void save(int64_t step, Wait what);
  /// A checkpoint is complete, `seconds` after its begin.
  void saved(double seconds);
  /// Training went back to the checkpoint of `to`, which took `seconds` from noticing to ready.
  void rollback(int64_t to, double seconds, const std::string& why);
  /// The life ends, as status.json says it. Later calls of anything change nothing. Any thread may call it.
  void end(const std::string& state, int64_t step, const std::string& reason, int code);

  TimeBins bins() const;
  const GoodputLedger& ledger() const { return ledger_; }  ///< as of the last event
  /// For status.json: effective (a share), trained_s, saving_s, lost_s, start_s, restart_s, detection_s, gap_s, idle_s,
  /// stops. Any thread may call it.
  std::vector<std::pair<std::string, double>> numbers() const;

 private:
  double now() const;
  GoodputEvent event(GoodputEvent::Kind kind) const;
  void add(const GoodputEvent& event);
  void flush();

  std::string file_;
  std::function<double()> clock_;
  mutable std::mutex lock_;  // the watchdog's thread ends a life
  GoodputLedger ledger_;
  int file_id_ = -1;
  std::string pending_;  // lines not yet on disk
  bool told_ = false, ended_ = false;
  double sign_ = 0;      // last sign of training
  int64_t step_ = 0;
  double waited_ = 0, stall_ = 0, durable_ = 0;
  int64_t saves_ = 0, durables_ = 0;
};

/// What `orthant report` sees of a run, which may be under way: the ledger up to the last event, and the rest of an open
/// life from status.json.
struct GoodputView {
  GoodputLedger ledger;
  TimeBins bins;
  double as_of = 0;        ///< time of the last sign, seconds since the epoch
  int64_t step = 0;        ///< last one known
  std::string state;       ///< of status.json; empty without one
  int64_t bad_lines = 0;   ///< of goodput.jsonl: torn by a kill or a full disk, left out
};
/// DataError when the folder has no goodput.jsonl or it holds no begin.
GoodputView read_goodput(const std::string& folder);

}  // namespace orthant
