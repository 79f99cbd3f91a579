// Where a run stands in its data: the same on all ranks and on any mesh, part of every checkpoint.
//
// - Another data.sequence at a resume begins a phase: a stream of its own, with seed data.seed + phase, from its
// sample
//   0. Everything else of the run goes on.
// - Other data.weights at a resume hold from the next sample on; each source goes on with its own next sample, in the
//   order that was laid out when the phase began.
// - After a rollback samples may be passed over: those of the steps that led to it.
// - batch.global may change at any resume. Seed, split and number of sources may not, nor data.samples within a
// phase.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "orthant/checkpoint.hpp"
#include "orthant/data.hpp"
#include "orthant/deck.hpp"
#include "train/data_record.hpp"

namespace orthant {

class DataPosition {
 public:
  /// Of a run that begins. `steps`: run.steps, `global_batch`: samples of a step.
  static DataPosition start(const Deck& deck, int64_t steps, int64_t global_batch);
  /// Of a run that goes on from a checkpoint; one that holds no stream (converted) begins one. UsageError (agreed)
  /// for what may not change, DataError (agreed) for a state that contradicts itself.
  static DataPosition resume(const Deck& deck, const TrainState& loaded, int64_t steps, int64_t global_batch);

  /// Of the training stream of the phase under way, or of an earlier one.
  DataSettings settings() const { return settings(phase()); }
  DataSettings settings(int64_t phase) const;
  int64_t next_sample() const { return now().next_sample; }
  int64_t samples() const { return now().samples; }  ///< N of the phase under way
  int64_t phase() const { return static_cast<int64_t>(record_.phases.size()) - 1; }
  const DataRecord& record() const { return record_; }

  /// Which samples a step (from 1) took or will take; nothing for steps of which the checkpoint does not say.
  struct Place {
    int64_t phase = 0, first_sample = 0, samples = 0;
  };
  std::optional<Place> place_of(int64_t step) const;

  /// The stream of `settings()` is open: compares its datasets with those of earlier lives (DataError naming prefix
  /// and numbers), sees that it holds what run.steps asks for (UsageError with numbers), and completes the notes. The
  /// stream has to stay where it is while this object is in use. Errors are this rank's own.
  void opened(const SampleStream& stream);
  /// Steps took so many samples: a multiple of `global_batch`.
  void advance(int64_t samples);
  /// After a rollback: the next `samples` (a multiple of `global_batch`) are passed over. False, and nothing is changed,
  /// where the stream does not hold as many beyond those that run.steps needs. After `opened`.
  bool skip(int64_t samples);
  /// Lines for the console about what this life changes: a phase begins, the mixture changes, what is seen again.
  /// Empty in a run of one phase that goes on as it was.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Writes record, samples and next_sample into a state, and removes what older checkpoints kept instead. After
  /// `opened`.
  void store(TrainState& state) const;

 private:
  DataPosition(const Deck& deck, int64_t steps, int64_t done, int64_t global_batch);
  void begin_phase(int64_t samples);
  void go_on();
  void refuse_changes() const;
  void read_old_keys(const TrainState& loaded);
  bool same_mixture(const std::vector<double>& a, const std::vector<double>& b) const;
  std::vector<double> shares(const std::vector<double>& weights) const;
  void compare_sources(const std::vector<SourceFacts>& facts);
  void complete(PhaseRecord& phase) const;
  std::vector<int64_t> planned(const PhaseRecord& phase, int64_t samples) const;
  void check_length(const SampleStream& stream) const;
  void note_phase();
  void note_mixture(const std::vector<SourceFacts>& facts);
  PhaseRecord& now() { return record_.phases.back(); }
  const PhaseRecord& now() const { return record_.phases.back(); }
  int64_t needed() const;

  DataSettings deck_;         ///< as the deck has them; sequence, seed and weights are those of the phase under way
  int64_t deck_samples_ = 0;  ///< data.samples; 0 = not given
  int64_t steps_, done_, global_;
  DataRecord record_;
  bool phase_begins_ = false, mixture_changes_ = false;
  const SampleStream* stream_ = nullptr;
  std::vector<std::string> notes_;
};

}  // namespace orthant
