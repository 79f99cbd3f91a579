// Weights-only exports of a run under way (checkpoint.export): each a complete Hugging Face folder.
//
//   <run.output>/exports/step-00000100/   config.json, model.safetensors (or shards and an index), tokenizer files
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/hf_companions.hpp"
#include "orthant/checkpoint.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

struct LiveExportReport {
  std::string folder;  ///< the complete folder
  double seconds = 0;
  int64_t bytes = 0;  ///< of all tensors
};

/// What the exports of a run have in common. They are never removed: checkpoint.keep counts checkpoints only.
class HfLiveExport {
 public:
  /// `folder`: where the folders of the steps go. `dtype`: as `--dtype` of convert spells it; a parameter that is not
  /// trained stays F32. UsageError if the model's settings have no Hugging Face config.json.
  HfLiveExport(const ModelConfig& model, std::string folder, const std::string& dtype);

  /// What the run's checkpoints carry goes into the exports to come as well: the tokenizer files, and the keys of
  /// config_json beside the model (token ids). For rank 0, which writes; DataError if config_json cannot be read.
  void carry(const CheckpointExtras& extras);

  /// Writes the fp32 masters among `pieces` (those of the group "weights" with `writer`), rounded to the dtype, as
  /// `folder`/step-<step>, to the byte what `orthant convert` makes of the checkpoint of that step in this dtype. A
  /// folder of that name is replaced. It gets its name when everything is on disk; before, and after a failure, there
  /// is none. Collective over `comm`; DataError, agreed, if it cannot be written.
  LiveExportReport write(MPI_Comm comm, int64_t step, const std::vector<StatePiece>& pieces) const;

  const std::string& folder() const { return folder_; }

 private:
  ModelConfig model_;
  std::string folder_, dtype_, config_text_;
  CompanionFiles companions_;
};

}  // namespace orthant
