// The bytes that a run should send, by closed form: what traffic.json shows beside the counted ones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "orthant/layout.hpp"
#include "orthant/model_config.hpp"
#include "orthant/store.hpp"

namespace orthant {

struct TrafficShape {
  int64_t micro = 1;      ///< sequences of a micro-batch
  int64_t sequence = 1;   ///< tokens of a sequence
  int64_t micros = 1;     ///< micro-batches of a rank in a training step
  bool full_recompute = false;
};

using TrafficTable = std::map<std::pair<AxisName, std::string>, int64_t>;

/// Bytes of one training step, summed over all ranks.
TrafficTable expected_step_traffic(const ModelConfig& config, const MeshShape& mesh, bool sequence_parallel, bool reproducible,
                                   Precision precision, const TrafficShape& shape);
/// Bytes of the forward pass of one validation micro-batch on every dp rank, summed over all ranks.
TrafficTable expected_eval_traffic(const ModelConfig& config, const MeshShape& mesh, bool sequence_parallel, bool reproducible,
                                   Precision precision, const TrafficShape& shape);

}  // namespace orthant
