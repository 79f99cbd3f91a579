// The steps of a save that one process takes alone; save_checkpoint (all ranks) and convert (one) share them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/hdf5.hpp"
#include "checkpoint/manifest.hpp"
#include "orthant/checkpoint.hpp"

namespace orthant {

inline constexpr const char* state_file = "state.h5";

/// A dataset to make: its path in the file and its global shape (1 or 2 dims).
struct StateTensor {
  std::string name;
  std::vector<int64_t> dims;
  std::vector<h5::Source> sources = {};  ///< empty: state.h5 holds the data; else these places in data files do
  int64_t elements() const;
};

/// weights/<param> or optimizer/<slot>/<param>
std::string dataset_name(const std::string& group, const Param& param);
std::vector<int64_t> dataset_dims(const Param& param);

/// Makes `folder`/state.h5 with all small contents and, still without values, all tensors, and takes the disk space
/// of the whole file. DataError if there is not enough, for data files as well.
void create_state_file(const std::string& folder, const std::vector<StateTensor>& tensors, const TrainState& state,
                       const CheckpointExtras& extras, const h5::Hints& hints = {});

/// Makes `folder`/`name` with 1-d datasets of so many elements, still without values, and takes its disk space.
void create_data_file(const std::string& folder, const std::string& name,
                      const std::map<std::string, int64_t>& tensors, const h5::Hints& hints);

/// Hashes state.h5 of the finished `temporary`, writes the manifest (whose `files` name the data files) and gives the
/// folder its final name. Returns the bytes.
int64_t seal_folder(const std::string& temporary, const std::string& final_path, Manifest manifest);

/// save_checkpoint, with a word on the way: `written(i)` follows the last byte of piece i, and pieces are written in
/// their order. (A piece that this rank does not write, or that is empty, counts as written.)
SaveReport write_checkpoint(MPI_Comm comm, const std::string& checkpoints_folder, int64_t step, const std::string& job,
                            const std::vector<StatePiece>& pieces, const TrainState& state,
                            const CheckpointExtras& extras, const SaveSettings& settings,
                            const std::function<void(size_t)>& written);

}  // namespace orthant
