// Checkpoints: the state of a run as tensors of global shape in HDF5, the same whatever mesh wrote them.
//
//   <checkpoints>/step-00000100/state.h5       /weights/<param>, /optimizer/<slot>/<param> (fp32, global shape),
//                                              /train/<key>, /deck, /tokenizer/<file>, /config, /source_dtype
//   <checkpoints>/step-00000100/data-00000.h5  only where several files share the tensors (checkpoint.files): then
//                                              state.h5 shows each as a virtual dataset over them
//   <checkpoints>/step-00000100/manifest.json  sizes and XXH64 of the files; written last: without it, no checkpoint
//   <checkpoints>/latest                       name of the last complete one
//
// All functions that take a communicator are collective over it: they return, or throw the same error, on all
// of its ranks, and a save returns nowhere before the checkpoint is complete on disk.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "orthant/param.hpp"

namespace orthant {

/// A rectangle of one tensor, held by this rank. `param` and `data` outlive the call.
struct StatePiece {
  const Param* param = nullptr;
  std::string group;      ///< "weights", "optimizer/<slot>", or "fp8/<what>"
  Piece piece;            ///< of the global tensor; may be empty
  float* data = nullptr;  ///< dense [piece.rows, piece.cols], fp32 masters or optimiser state
  bool writer = true;     ///< false: another rank writes the same piece
  /// Of a whole matrix of two dims: `load` takes the columns that file and model both have, and leaves the rest of `data`, or all
  /// of it where the file has no such tensor, as it was.
  bool optional = false;
};

/// What a run needs besides tensors (group /train). The keys of the three maps are one name space, without '/'.
struct TrainState {
  int64_t step = 0;         ///< optimiser steps done
  int64_t tokens = 0;       ///< tokens seen
  int64_t samples = 0;      ///< length of the training stream (data.samples), fixed at the first start
  int64_t decay_steps = 0;  ///< length of the learning rate's decay, fixed at the first start
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> reals;
  std::map<std::string, std::string> strings;
  bool has_optimizer = true;  ///< set by load: false for a converted checkpoint, whose optimiser starts anew
};

/// What travels with the state.
struct CheckpointExtras {
  std::string deck_text;                               ///< the resolved deck
  std::map<std::string, std::string> tokenizer_files;  ///< file name -> content
  std::string config_json;                             ///< the model as a Hugging Face config.json
  std::string source_dtype;  ///< F32, BF16, F16 or F64: of the files the weights came from, "" if trained from
                             ///< scratch; tensors that differ follow as ",<file tensor>=<dtype>"
  std::string mesh;          ///< the writing mesh in words, for people
};

/// How a save is made (deck section checkpoint).
struct SaveSettings {
  int keep = 1;        ///< newest complete checkpoints that stay, at least 1
  int64_t files = -1;  ///< 0 = one data file per node, n = one per n ranks, -1 = all in state.h5
  std::map<std::string, std::string> mpi_info;  ///< hints to MPI-IO; those for striping apply to new files
};

struct SaveReport {
  std::string folder;  ///< the complete checkpoint
  double seconds = 0;  ///< from the start until it was durable: all on disk, under its final name
  int64_t bytes = 0;   ///< of all its files
  int64_t files = 0;   ///< with state.h5, without the manifest
  std::string
      note;  ///< rank 0: `latest` that could not be moved, an older checkpoint that could not be removed; else empty
  std::map<std::string, std::string> hints;  ///< rank 0: what MPI-IO made of `mpi_info`; a key it ignored is absent
  double gb_per_s() const { return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0; }
};

/// How much of a checkpoint is looked at before it is trusted.
enum class Trust {
  sizes,     ///< valid manifest, files there, sizes right
  checksums  ///< and every file re-read against its XXH64
};

/// Writes `<checkpoints_folder>/step-<step>` and lets the newest `settings.keep` complete ones stay.
/// The pieces with `writer` of all ranks must cover each tensor exactly once (else LogicError). DataError if the
/// space or a write fails; then nothing of the new checkpoint is left and the earlier ones are untouched.
/// `job` names the writer (job id), for the temporary folder.
SaveReport save_checkpoint(MPI_Comm comm, const std::string& checkpoints_folder, int64_t step, const std::string& job,
                           const std::vector<StatePiece>& pieces, const TrainState& state,
                           const CheckpointExtras& extras, const SaveSettings& settings);

/// Refuses, before a run begins, a folder in which no checkpoint could be written: makes it if it is missing and
/// tries a small file. DataError with path and reason; UsageError if MPI could not take a hint of `settings`.
void prepare_checkpoints_folder(MPI_Comm comm, const std::string& checkpoints_folder,
                                const SaveSettings& settings = {});

/// The checkpoint written last among the good ones, or nothing. Bad ones met on the way go into `passed_over` as
/// "<folder>: <what is wrong>", for the log; unfinished folders (.writing-…) are not looked at.
std::optional<std::string> find_checkpoint(MPI_Comm comm, const std::string& checkpoints_folder,
                                           std::vector<std::string>* passed_over, Trust trust = Trust::checksums);

/// Fills `pieces` from the checkpoint `folder`, written by any mesh. Pieces of optimizer/… stay untouched where it
/// has no optimiser state at all (has_optimizer is then false). DataError if the folder is not a good checkpoint, or
/// a tensor is missing, has another shape or type, or is left over: the model is not the one that was saved.
/// A folder from find_checkpoint was verified there; give Trust::checksums for one that the user named.
/// `accept` may look at state and extras before any tensor is, and throw. Ranks may differ in whether they give
/// `extras` or `accept`: one that looks for all is enough, as what it throws is thrown by all.
using AcceptCheckpoint = std::function<void(const TrainState& state, const CheckpointExtras& extras)>;
TrainState load_checkpoint(MPI_Comm comm, const std::string& folder, const std::vector<StatePiece>& pieces,
                           CheckpointExtras* extras, Trust trust = Trust::sizes,
                           const AcceptCheckpoint& accept = nullptr);

/// One tensor of a checkpoint, for tables.
struct CheckpointTensor {
  std::string name;  ///< path in state.h5, e.g. weights/embedding.weight
  std::vector<int64_t> dims;
  std::string type;
  int64_t bytes = 0;
};

/// What is in a checkpoint, without its tensors' values. Not collective.
struct CheckpointContents {
  TrainState state;
  CheckpointExtras extras;
  std::vector<CheckpointTensor> tensors;
  int64_t parameters = 0;  ///< elements of all weights
  int64_t bytes = 0;       ///< of all files
  int ranks = 0;           ///< that wrote it
};
CheckpointContents read_checkpoint_contents(const std::string& folder);

/// Re-reads every file and compares sizes and checksums with the manifest. The differences in words; empty = good.
std::vector<std::string> verify_checkpoint(const std::string& folder);

/// True if `folder` holds a manifest, whatever it says.
bool is_checkpoint(const std::string& folder);

}  // namespace orthant
