// What a checkpoint keeps of the data: the datasets, the phases of a run, and what each of them drew.
//
// A phase is a stretch of steps with one data.sequence and so one stream of samples; within it weights and
// batch.global may change. The record travels as one JSON text in the state (key data_position), so that a run of
// hundreds of sources adds one entry to /train and not thousands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "orthant/checkpoint.hpp"
#include "orthant/data.hpp"

namespace orthant {

/// A training dataset as earlier lives found it; -1 where none has said (checkpoints without a record).
struct SourceRecord {
  std::string prefix;
  int64_t documents = -1, tokens = -1;
  int64_t training_tokens = -1;  ///< of the training part of the split
};

/// From here on steps take `global` samples each.
struct BatchRecord {
  int64_t first_step = 0;    ///< steps of the run that were done before
  int64_t first_sample = 0;  ///< of the phase's stream
  int64_t global = 0;
};

struct PhaseRecord {
  int64_t sequence = 0;
  int64_t samples = 0;          ///< N of its stream
  int64_t first_step = 0;       ///< steps of the run that were done before it
  int64_t next_sample = 0;      ///< samples drawn so far
  int64_t skipped = 0;          ///< of them passed over after rollbacks (guard.skip_data)
  std::vector<double> weights;  ///< at its sample 0; empty: in proportion to tokens
  std::vector<WeightChange> changes;
  std::vector<BatchRecord> batches;    ///< steps before the first of them: not known (checkpoints without a record)
  std::vector<int64_t> order_samples;  ///< of each source; empty until the stream was opened
  std::vector<int64_t> drawn;          ///< samples that each source gave; empty where not known
};

struct DataRecord {
  int64_t seed = 0;  ///< of phase 0; phase p has seed + p
  std::string split;
  std::vector<SourceRecord> sources;
  std::vector<PhaseRecord> phases;  ///< never empty; the last is under way

  /// Seeds have 32 bits and wrap.
  int64_t seed_of(int64_t phase) const { return (seed + phase) & int64_t{0xffffffff}; }
};

/// Nothing where the checkpoint has none (written before records, or converted). DataError, agreed, where it
/// contradicts itself.
std::optional<DataRecord> read_data_record(const TrainState& state);
void write_data_record(const DataRecord& record, TrainState& state);
/// The state's key of the record, which tables for people leave out.
extern const char* const data_record_key;

}  // namespace orthant
