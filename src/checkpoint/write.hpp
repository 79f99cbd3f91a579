// The steps of a save that one process takes alone; save_checkpoint (all ranks) and convert (one) share them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orthant/checkpoint.hpp"

namespace orthant {

inline constexpr const char* state_file = "state.h5";

/// A dataset to make: its path in the file and its global shape (1 or 2 dims).
struct StateTensor {
  std::string name;
  std::vector<int64_t> dims;
  int64_t elements() const;
};

/// weights/<param> or optimizer/<slot>/<param>
std::string dataset_name(const std::string& group, const Param& param);
std::vector<int64_t> dataset_dims(const Param& param);

/// Makes `folder`/state.h5 with all small contents and, still without values, all tensors, and takes the disk space
/// of the whole file. DataError if there is not enough.
void create_state_file(const std::string& folder, const std::vector<StateTensor>& tensors, const TrainState& state,
                       const CheckpointExtras& extras);

/// Hashes the files of the finished `temporary`, writes its manifest and gives it its final name. Returns the bytes.
int64_t seal_folder(const std::string& temporary, const std::string& final_path, int64_t step, int64_t sequence,
                    int ranks, const std::string& mesh, bool optimizer);

}  // namespace orthant
