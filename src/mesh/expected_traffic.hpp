// The bytes that a run should send, by closed form: what traffic.json shows beside the counted ones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "model/stage_cut.hpp"
#include "orthant/context.hpp"
#include "orthant/layout.hpp"
#include "orthant/schedule.hpp"
#include "orthant/store.hpp"

namespace orthant {

/// What the traffic of a run depends on.
struct TrafficPlan {
  const ModelConfig& config;
  const MeshShape& mesh;
  const Pipeline& pipeline;
  const std::vector<ChunkRange>& cut;
  Zero zero;
  bool sequence_parallel = false, reproducible = false, full_recompute = false;
  Precision precision;
  int64_t micro = 1;     ///< sequences of a micro-batch
  int64_t sequence = 1;  ///< tokens of a sequence
  int64_t micros = 1;    ///< micro-batches of a rank in a training step
  ContextMethod method = ContextMethod::ring;
  Range fp8_enters = {};    ///< blocks of which FP8 numbers enter the tp regions, a byte each (layers/operand.hpp)
};

using TrafficTable = std::map<std::pair<AxisName, std::string>, int64_t>;

/// Bytes of one training step, summed over all ranks; without those of routed rows, which no form gives beforehand.
TrafficTable expected_step_traffic(const TrafficPlan& plan);
/// Bytes of a validation pass over one global batch, summed over all ranks.
TrafficTable expected_eval_traffic(const TrafficPlan& plan);
/// Bytes of passes over mixture layers that sent `off_rank` rows of tokens to other ranks (each pass out and back; training
/// passes also backward, and forward again with full recompute), and in all kept `kept` picks of tokens.
TrafficTable routed_traffic(const TrafficPlan& plan, int64_t off_rank, int64_t kept, bool training);
/// Rows that one training step would send to other ranks if every expert got the same share, summed over all ranks.
int64_t uniform_rows(const TrafficPlan& plan);
/// Bytes of a training step as a plan foretells them: with uniform routing.
TrafficTable planned_step_traffic(const TrafficPlan& plan);
/// What tables for people call the axis: shards and replicas are both parts of dp.
const char* traffic_name(AxisName axis);

}  // namespace orthant
