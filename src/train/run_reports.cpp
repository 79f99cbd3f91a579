// See run_reports.hpp.
#include "train/run_reports.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "mesh/expected_traffic.hpp"
#include "support/agree.hpp"

namespace orthant {

std::string traffic_report(const Mesh& mesh, const RunPlan& plan, const Traffic& traffic, int64_t steps, int64_t eval_batches, const TrafficRows& routed) {
  TrafficTable expected;
  for (const auto& [key, bytes] : expected_step_traffic(traffic_plan(plan))) expected[key] += bytes * steps;
  for (const auto& [key, bytes] : routed_traffic(traffic_plan(plan), routed.trained_off_rank, routed.trained_kept, true)) expected[key] += bytes;
  for (const auto& [key, bytes] : routed_traffic(traffic_plan(plan), routed.evaluated_off_rank, routed.evaluated_kept, false)) expected[key] += bytes;
  for (const auto& [key, bytes] : expected_eval_traffic(traffic_plan(plan))) expected[key] += bytes * eval_batches;
  struct Row {
    long long calls = 0, bytes = 0, expected = 0;
  };
  std::map<std::string, std::map<std::string, Row>> rows;  // shards and replicas of them are both dp
  for (int a = 0; a < axis_names; ++a) {
    auto axis = static_cast<AxisName>(a);
    for (const char* op : {"all_reduce", "all_gather", "reduce_scatter", "exchange", "shift"}) {
      const auto& entries = traffic.entries();
      auto it = entries.find({axis, op});
      // n x bytes on each rank: the sum over ranks divides by n. The tie has one rank at most stages: their n is 1,
      // and they send nothing.
      long long mine[2] = {it == entries.end() ? 0 : it->second.scaled_bytes, it == entries.end() ? 0 : it->second.calls}, sum[2] = {0, 0};
      int size = mesh.size(axis), largest = 1;
      ORTHANT_MPI(MPI_Reduce(mine, sum, 2, MPI_LONG_LONG, MPI_SUM, 0, mesh.cart()));
      ORTHANT_MPI(MPI_Reduce(&size, &largest, 1, MPI_INT, MPI_MAX, 0, mesh.cart()));
      Row row{sum[1], sum[0] / largest, expected.count({axis, op}) ? expected[{axis, op}] : 0};
      if (!row.bytes && !row.expected) continue;
      Row& all = rows[traffic_name(axis)][op];
      all.calls += row.calls;
      all.bytes += row.bytes;
      all.expected += row.expected;
    }
  }
  nlohmann::json axes = nlohmann::json::object();
  for (const auto& [axis, ops] : rows)
    for (const auto& [op, row] : ops) axes[axis].push_back({{"op", op}, {"calls", row.calls}, {"bytes", row.bytes}, {"expected_bytes", row.expected}});
  return nlohmann::json{{"steps", steps}, {"axes", axes}}.dump(1) + "\n";
}

std::string timers_report(const Mesh& mesh, const Timers& timers, int64_t steps) {
  std::string text = fmt::format("{:<16} {:>12} {:>12} {:>12}   seconds over {} steps, per rank\n", "phase", "min", "mean", "max", steps);
  for (const char* phase : {"data", "forward", "backward", "weight gradients", "pipeline wait", "gradient sums", "gradient norm", "update", "validation", "checkpoint", "export"}) {
    auto it = timers.seconds().find(phase);
    double mine = it == timers.seconds().end() ? 0 : it->second, least = 0, most = 0, sum = 0;
    ORTHANT_MPI(MPI_Reduce(&mine, &least, 1, MPI_DOUBLE, MPI_MIN, 0, mesh.cart()));
    ORTHANT_MPI(MPI_Reduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, 0, mesh.cart()));
    ORTHANT_MPI(MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, mesh.cart()));
    if (most > 0) text += fmt::format("{:<16} {:>12.4f} {:>12.4f} {:>12.4f}\n", phase, least, sum / mesh.ranks(), most);
  }
  return text;
}

}  // namespace orthant
