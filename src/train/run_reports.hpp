// What a run writes at its end about itself: traffic.json and timers.txt.
#pragma once

#include <string>

#include "orthant/collectives.hpp"
#include "orthant/mesh.hpp"
#include "train/runner.hpp"
#include "train/session.hpp"

namespace orthant {

/// Rows of tokens that routing sent to other ranks, and picks that were kept: in training, and in validation.
struct TrafficRows {
  int64_t trained_off_rank = 0, trained_kept = 0, evaluated_off_rank = 0, evaluated_kept = 0;
};

/// Bytes counted on every rank, summed, beside the closed form of `steps` training steps and `eval_batches` batches of
/// validation, as JSON. Collective; text on rank 0.
std::string traffic_report(const Mesh& mesh, const RunPlan& plan, const Traffic& traffic, int64_t steps, int64_t eval_batches, const TrafficRows& routed);

/// Seconds by phase: least, mean and most over ranks. Collective; text on rank 0.
std::string timers_report(const Mesh& mesh, const Timers& timers, int64_t steps);

}  // namespace orthant
