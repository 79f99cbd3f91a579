// What the steps of a run cost: waits, idle time and memory of each step for its row of metrics, and at the end
// traffic.json, timers.txt and, with log.trace, trace.json.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "orthant/mesh.hpp"
#include "orthant/router_stats.hpp"
#include "support/run_folder.hpp"
#include "support/trace.hpp"
#include "train/axis_costs.hpp"
#include "train/console.hpp"
#include "train/run_reports.hpp"
#include "train/runner.hpp"
#include "train/session.hpp"
#include "train/step.hpp"

namespace orthant {

/// Of one step; on rank 0, but for `compute`.
struct StepCosts {
  std::vector<std::pair<std::string, double>> exposed;  ///< seconds waited for each axis with more than one rank, mean over ranks
  double bubble = 0;                                     ///< idle share of the schedule's span, mean over ranks; 0 without a pipeline
  double memory = 0;                                     ///< largest peak, bytes
  double compute = 0;                                    ///< seconds that this rank computed, without waits; on all ranks
};

class RunCosts {
 public:
  /// Counting begins: the traffic so far is forgotten, and a trace takes now as time 0. Collective. Refers to all it is given.
  RunCosts(const Mesh& mesh, Session& session, Timers& timers);
  ~RunCosts();
  RunCosts(const RunCosts&) = delete;
  RunCosts& operator=(const RunCosts&) = delete;

  void begin_step(int64_t step);
  /// Collective, once a step.
  StepCosts step(const StepResult& r);
  void add_evaluated(const RouterReport& r) { evaluated_.add(r); }
  void add_evaluation() { ++evals_; }
  /// Ends the trace, tells waits on the console and writes the files (`folder`: on rank 0, else null). Collective.
  void write(RunFolder* folder, Console& console);

 private:
  struct Routed {
    int64_t off_rank = 0, kept = 0;
    void add(const RouterReport& r) {
      off_rank += r.off_rank_rows;
      kept += r.kept();
    }
  };
  void end_trace();

  const Mesh& mesh_;
  Session& session_;
  Timers& timers_;
  AxisCosts axis_costs_;
  std::optional<Trace> trace_;
  int64_t steps_ = 0, evals_ = 0;
  Routed trained_, evaluated_;  ///< rows of tokens, for the traffic that only routing knows
};

}  // namespace orthant
