// Reads the metrics of runs and makes the chart of them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/chart.hpp"

namespace orthant::chart {

/// One row of metrics.jsonl: its numbers by name. Non-finite numbers are NaN.
struct MetricsRow {
  std::vector<std::pair<std::string, double>> numbers;
  bool has(const std::string& name) const;
  double get(const std::string& name) const;  ///< NaN when the row lacks it
};

struct RunMetrics {
  std::string name;                              ///< for the legend: the run as the user named it
  std::string file;                              ///< the metrics.jsonl that was read
  std::vector<MetricsRow> training, validation;  ///< validation rows have `valid_loss` and no `loss`
  bool torn = false;                             ///< the last line was cut off and dropped
};

/// Reads a run folder (or a metrics.jsonl itself). A torn last line is dropped; a bad line before it is a DataError
/// with the line's number.
RunMetrics read_run(const std::string& path);

struct PlotRequest {
  std::string x = "step";    ///< step, tokens or seconds (training time so far)
  std::string y = "loss";    ///< any number of a training row; with loss also the validation points
  std::int64_t smooth = -1;  ///< half width of the smoothing window in rows; -1 = chosen from the length; 0 = none
};

/// The chart of one or more runs. Throws UsageError when no run has the wanted number, and names those there are.
Chart chart_of(const std::vector<RunMetrics>& runs, const PlotRequest& request);

}  // namespace orthant::chart
