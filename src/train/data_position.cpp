// See data_position.hpp.
#include "train/data_position.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "data/blend.hpp"
#include "data/source_order.hpp"
#include "data/split.hpp"
#include "orthant/error.hpp"
#include "train/data_ledger.hpp"
#include "train/session.hpp"

namespace orthant {

DataPosition::DataPosition(const Deck& deck, int64_t steps, int64_t done, int64_t global_batch)
    : deck_(data_settings(deck, 0)),
      deck_samples_(deck[keys::data::samples]),
      steps_(steps),
      done_(done),
      global_(global_batch) {
  ORTHANT_ENSURE(global_ > 0, "a step takes samples");
}

DataPosition DataPosition::start(const Deck& deck, int64_t steps, int64_t global_batch) {
  return resume(deck, TrainState{}, steps, global_batch);
}

DataPosition DataPosition::resume(const Deck& deck, const TrainState& loaded, int64_t steps, int64_t global_batch) {
  DataPosition at(deck, steps, loaded.step, global_batch);
  if (auto record = read_data_record(loaded))
    at.record_ = std::move(*record);
  else
    at.read_old_keys(loaded);
  if (!at.record_.phases.empty()) {
    at.refuse_changes();
    at.go_on();
    return at;
  }
  at.record_.seed = at.deck_.seed;
  at.record_.split = at.deck_.split;
  for (const std::string& prefix : at.deck_.train) at.record_.sources.push_back({prefix});
  at.begin_phase(loaded.samples > 0 ? loaded.samples : steps * global_batch);
  return at;
}

/// `samples`: N unless the deck gives it.
void DataPosition::begin_phase(int64_t samples) {
  PhaseRecord p;
  p.sequence = deck_.sequence;
  p.samples = deck_samples_ > 0 ? deck_samples_ : samples;
  p.first_step = done_;
  p.weights = deck_.weights;
  p.batches = {{done_, 0, global_}};
  record_.phases.push_back(std::move(p));
}

/// Checkpoints written before records: next_sample and the settings as text (stream.*).
void DataPosition::read_old_keys(const TrainState& loaded) {
  const auto next = loaded.integers.find("next_sample");
  const auto text = [&](const char* key, const std::string& otherwise) {
    const auto it = loaded.strings.find(std::string("stream.") + key);
    return it == loaded.strings.end() ? otherwise : it->second;
  };
  if (next == loaded.integers.end()) return;  // converted: no stream was read
  const auto number = [&](const char* key, int64_t otherwise) {
    const std::string value = text(key, std::to_string(otherwise));
    try {
      return int64_t{std::stoll(value)};
    } catch (const std::exception&) {
      throw DataError(
          fmt::format("the checkpoint's /train/stream.{} is \"{}\"; a whole number is wanted", key, value), true);
    }
  };
  record_.seed = number("seed", deck_.seed);
  record_.split = text("split", deck_.split);
  const int64_t sources = number("sources", static_cast<int64_t>(deck_.train.size()));
  for (int64_t k = 0; k < sources; ++k)
    record_.sources.push_back(
        {k < static_cast<int64_t>(deck_.train.size()) ? deck_.train[static_cast<size_t>(k)] : std::string()});
  PhaseRecord p;
  p.sequence = number("sequence", deck_.sequence);
  p.samples = number("samples", loaded.samples > 0  ? loaded.samples
                                : deck_samples_ > 0 ? deck_samples_
                                                    : steps_ * global_);
  p.next_sample = next->second;
  if (loaded.strings.count("stream.weights")) {
    std::istringstream words(text("weights", ""));
    for (double w; words >> w;) p.weights.push_back(w);
  } else {
    p.weights = deck_.weights;
  }
  // one batch size all along is the common case, and all that can be told from two numbers
  if (loaded.step > 0 && p.next_sample % loaded.step == 0 && p.next_sample > 0)
    p.batches = {{0, 0, p.next_sample / loaded.step}};
  record_.phases.push_back(std::move(p));
}

void DataPosition::refuse_changes() const {
  std::string problems;
  const auto compare = [&](const char* key, const std::string& was, const std::string& is) {
    if (was != is)
      problems += fmt::format("\n  {} was {} when the checkpoint was written, and is {} now", key, was, is);
  };
  compare("data.seed", std::to_string(record_.seed), std::to_string(deck_.seed));
  compare("data.split", record_.split, deck_.split);
  compare("the number of prefixes in data.train", std::to_string(record_.sources.size()),
          std::to_string(deck_.train.size()));
  if (deck_samples_ > 0 && deck_.sequence == now().sequence)
    compare("data.samples", std::to_string(now().samples), std::to_string(deck_samples_));
  if (!problems.empty())
    throw UsageError("the deck changes the stream of samples of a run that has begun:" + problems +
                         "\nSet the old value again, or start a new run with another run.output",
                     true);
}

/// What this life changes: the phase, the mixture, the batch.
void DataPosition::go_on() {
  if (deck_.sequence != now().sequence) {
    if (done_ >= steps_)
      throw UsageError(fmt::format("data.sequence was {} and is {} now, which begins a new phase of the data, but "
                                   "all steps of run.steps = {} "
                                   "are done; raise run.steps, or set data.sequence = {} again",
                                   now().sequence, deck_.sequence, steps_, now().sequence),
                       true);
    phase_begins_ = true;
    begin_phase((steps_ - done_) * global_);
    return;
  }
  PhaseRecord& p = now();
  if (!same_mixture(p.changes.empty() ? p.weights : p.changes.back().weights, deck_.weights)) {
    mixture_changes_ = true;
    if (p.next_sample == 0) {  // nothing was drawn: the phase begins with these weights
      p.weights = deck_.weights;
      p.order_samples.clear();
    } else {
      // a change from which no sample was drawn has been none
      if (!p.changes.empty() && p.changes.back().first_sample == p.next_sample) p.changes.pop_back();
      if (!same_mixture(p.changes.empty() ? p.weights : p.changes.back().weights, deck_.weights))
        p.changes.push_back({p.next_sample, deck_.weights});
    }
  }
  if (p.batches.empty() || p.batches.back().global != global_) {
    if (!p.batches.empty() && p.batches.back().first_step == done_) p.batches.pop_back();
    p.batches.push_back({done_, p.next_sample, global_});
  }
}

bool DataPosition::same_mixture(const std::vector<double>& a, const std::vector<double>& b) const {
  if (record_.sources.size() == 1 || a == b) return true;
  // in proportion to tokens is a rule of its own: which weights it gives is not known before the data are open
  return !a.empty() && !b.empty() && normalised(a) == normalised(b);
}

DataSettings DataPosition::settings(int64_t phase) const {
  const PhaseRecord& p = record_.phases.at(static_cast<size_t>(phase));
  DataSettings s = deck_;
  s.sequence = p.sequence;
  s.seed = record_.seed_of(phase);
  s.samples = p.samples;
  s.weights = p.weights;
  s.changes = p.changes;
  s.order_samples = p.order_samples;
  return s;
}

std::optional<DataPosition::Place> DataPosition::place_of(int64_t step) const {
  for (size_t k = record_.phases.size(); k-- > 0;) {
    const PhaseRecord& p = record_.phases[k];
    for (auto b = p.batches.rbegin(); b != p.batches.rend(); ++b)
      if (step > b->first_step)
        return Place{static_cast<int64_t>(k), b->first_sample + (step - 1 - b->first_step) * b->global, b->global};
    if (step > p.first_step) break;  // of this phase, but from a time of which nothing is known
  }
  return std::nullopt;
}

int64_t DataPosition::needed() const { return now().next_sample + std::max<int64_t>(0, steps_ - done_) * global_; }

void DataPosition::opened(const SampleStream& stream) {
  const std::vector<SourceFacts> facts = stream.facts();
  ORTHANT_ENSURE(facts.size() == record_.sources.size(), "the stream of another position");
  compare_sources(facts);
  PhaseRecord& p = now();
  if (p.order_samples.empty())
    for (const SourceFacts& f : facts) p.order_samples.push_back(f.order_samples);
  for (PhaseRecord& phase : record_.phases) complete(phase);
  check_length(stream);
  if (const auto drawn = stream.drawn(p.next_sample); drawn != p.drawn) {
    for (size_t k = 0; k < drawn.size(); ++k)
      if (drawn[k] != p.drawn[k])
        throw DataError(
            fmt::format("{}: the checkpoint says that {} of its samples were drawn, and its stream gives {} by "
                        "sample {}; was it written "
                        "by another version of this program?",
                        record_.sources[k].prefix, p.drawn[k], drawn[k], p.next_sample));
  }
  stream_ = &stream;
  notes_.clear();
  if (phase_begins_)
    note_phase();
  else if (phase() > 0)
    notes_.push_back(fmt::format("data      phase {}, since step {}: sequence {}, goes on with sample {}", phase(),
                                 p.first_step + 1, p.sequence, p.next_sample));
  if (mixture_changes_) note_mixture(facts);
}

/// Kept names are renewed (data may have moved), kept counts compared.
void DataPosition::compare_sources(const std::vector<SourceFacts>& facts) {
  for (size_t k = 0; k < facts.size(); ++k) {
    SourceRecord& was = record_.sources[k];
    const SourceFacts& is = facts[k];
    const std::string& prefix = deck_.train[k];
    if (was.tokens >= 0 &&
        (was.tokens != is.tokens || was.documents != is.documents || was.training_tokens != is.part_tokens))
      throw DataError(
          fmt::format("data.train[{}] = {}: {} documents with {} tokens ({} for training), but this run began with "
                      "{} documents with {} tokens "
                      "({} for training){}; give the old dataset again, in its old place in data.train, or start a "
                      "new run with another run.output",
                      k, prefix, is.documents, is.tokens, is.part_tokens, was.documents, was.tokens,
                      was.training_tokens, was.prefix == prefix ? "" : " in " + was.prefix));
    was = {prefix, is.documents, is.tokens, is.part_tokens};
  }
}

/// Shares as StreamBuilder has them (it lays orders out by these, and mixes by these made to add up to 1 once more).
/// After compare_sources.
std::vector<double> DataPosition::shares(const std::vector<double>& weights) const {
  std::vector<double> tokens;
  for (const SourceRecord& s : record_.sources) tokens.push_back(static_cast<double>(s.training_tokens));
  return normalised(weights.empty() ? tokens : weights);
}

/// Samples that each source of a phase gives to its first `samples`, were its sources endless.
std::vector<int64_t> DataPosition::planned(const PhaseRecord& phase, int64_t samples) const {
  if (record_.sources.size() == 1) return {samples};
  std::vector<Blend::Segment> segments{{0, normalised(shares(phase.weights))}};
  for (const WeightChange& c : phase.changes) segments.push_back({c.first_sample, normalised(shares(c.weights))});
  return Blend(std::move(segments), std::vector<int64_t>(record_.sources.size(), std::numeric_limits<int64_t>::max()))
      .drawn(samples);
}

/// What a checkpoint without a record does not say of a phase follows from its settings.
void DataPosition::complete(PhaseRecord& phase) const {
  if (phase.drawn.empty()) phase.drawn = planned(phase, phase.next_sample);
  if (!phase.order_samples.empty()) return;
  const bool mixed = record_.sources.size() > 1;
  for (double share : shares(phase.weights))
    phase.order_samples.push_back(samples_for_share(phase.samples, share, mixed));
}

void DataPosition::check_length(const SampleStream& stream) const {
  if (stream.holds(needed())) return;
  const PhaseRecord& p = now();
  if (p.changes.empty())
    throw UsageError(
        fmt::format("data.samples = {} fixes a stream of {} samples, and run.steps = {} with batch.global = {} needs "
                    "{}; a longer stream has another "
                    "order: start a new run with a larger data.samples, or lower run.steps",
                    p.samples, stream.available(), steps_, global_, needed()));
  const auto k = static_cast<size_t>(stream.exhausted());
  const SourceFacts facts = stream.facts()[k];
  const int64_t reached = done_ + (stream.available() - p.next_sample) / global_;
  throw UsageError(fmt::format(
      "data.weights: {} (share {:.4g} from sample {} on) ends too early. Its order was laid out for {} samples when "
      "the phase began, and its {} "
      "epochs hold {}; {} are drawn, and run.steps = {} needs {}. An order cannot grow without changing; give it a "
      "smaller weight, "
      "or lower run.steps to {}",
      record_.sources[k].prefix, shares(p.changes.back().weights)[k], p.changes.back().first_sample,
      p.order_samples[k], facts.epochs, facts.available, p.drawn[k], steps_, planned(p, needed())[k], reached));
}

void DataPosition::note_phase() {
  const PhaseRecord &p = now(), &before = record_.phases[record_.phases.size() - 2];
  std::string mixture;
  if (record_.sources.size() > 1) mixture = fmt::format(", shares {:.4g}", fmt::join(shares(p.weights), " "));
  notes_.push_back(
      fmt::format("data      phase {} begins at step {}: sequence {} (was {}), a stream of {} samples from its "
                  "sample 0, seed {}{}",
                  phase(), done_ + 1, p.sequence, before.sequence, p.samples, record_.seed_of(phase()), mixture));
  for (std::string& line : repetition_lines(record_, planned(p, needed()))) notes_.push_back(std::move(line));
}

void DataPosition::note_mixture(const std::vector<SourceFacts>& facts) {
  const PhaseRecord& p = now();
  if (p.changes.empty() || p.changes.back().first_sample != p.next_sample)
    return;  // taken back before a sample was drawn
  const std::vector<double> is = shares(p.changes.back().weights),
                            was = shares(p.changes.size() > 1 ? p.changes[p.changes.size() - 2].weights : p.weights);
  notes_.push_back(
      fmt::format("data      other weights from sample {} (step {}) on; each source goes on with its next sample",
                  p.next_sample, done_ + 1));
  const std::vector<int64_t> wanted = planned(p, needed());
  for (size_t k = 0; k < facts.size(); ++k)
    notes_.push_back(
        fmt::format("  {}: share {:.4g} (was {:.4g}), {} samples drawn, {} wanted by step {}, {} laid out",
                    record_.sources[k].prefix, is[k], was[k], p.drawn[k], wanted[k], std::max(steps_, done_),
                    facts[k].available));
}

void DataPosition::advance(int64_t samples) {
  ORTHANT_ENSURE(samples >= 0 && samples % global_ == 0, "whole steps");
  now().next_sample += samples;
  done_ += samples / global_;
}

bool DataPosition::skip(int64_t samples) {
  ORTHANT_ENSURE(stream_ != nullptr && samples >= 0 && samples % global_ == 0, "whole steps of an open stream");
  if (!stream_->holds(needed() + samples)) return false;
  PhaseRecord& p = now();
  p.next_sample += samples;
  p.skipped += samples;
  if (!p.batches.empty() && p.batches.back().first_step == done_) p.batches.pop_back();
  p.batches.push_back({done_, p.next_sample, global_});
  return true;
}

void DataPosition::store(TrainState& state) const {
  ORTHANT_ENSURE(stream_ != nullptr, "a position is stored after its stream was opened");
  DataRecord record = record_;
  record.phases.back().drawn = stream_->drawn(next_sample());
  state.samples = samples();
  state.integers["next_sample"] = next_sample();
  std::erase_if(state.strings, [](const auto& entry) { return entry.first.rfind("stream.", 0) == 0; });
  write_data_record(record, state);
}

}  // namespace orthant
