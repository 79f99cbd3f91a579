// Which blocks of the model each virtual stage of the pipeline holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orthant/model_config.hpp"
#include "orthant/param.hpp"
#include "orthant/schedule.hpp"

namespace orthant {

/// Blocks [first_layer, first_layer + layers), with the embedding before them or the head behind them.
struct ChunkRange {
  int64_t first_layer = 0, layers = 0;
  bool embedding = false, head = false;
  int64_t units() const { return layers + embedding + head; }
};

/// A range for each virtual stage, in model order. `given` (pipeline.stage_layers) fixes the blocks of each when it is
/// not empty. Else equal numbers where they divide; else embedding and head count as a block each, and what is left over
/// goes to the earliest: 126 blocks on 16 are 7, 14 x 8, 7. Needs layers + 2 >= virtual_stages.
std::vector<ChunkRange> stage_cut(int64_t layers, int64_t virtual_stages, const std::vector<int64_t>& given = {});
/// Stage of the pipeline that holds the head when it is not the embedding's (for tied weights), else 0.
int64_t head_stage(const Pipeline& pipeline);
/// "embedding, blocks 1-4" (counted from 1), for people.
std::string range_text(const ChunkRange& range);

/// Parameters that each unit of a range computes with, in the order of the forward pass; a tied weight is listed with the
/// head too when `tied_head` is set.
std::vector<std::vector<Param>> range_params(const ModelConfig& config, const ChunkRange& range, bool tied_head);
/// Parameters of each unit of one stage, chunk after chunk, in the order of the forward pass. A tied weight belongs to
/// the embedding's unit; on a stage that holds the head alone it belongs to the head's.
std::vector<std::vector<Param>> unit_params(const ModelConfig& config, const Pipeline& pipeline, const std::vector<ChunkRange>& cut, int64_t stage);

}  // namespace orthant
