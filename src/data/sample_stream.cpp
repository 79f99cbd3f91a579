// The stream of samples: settings checked, sources opened and split, orders built, mixed.
#include <cmath>

#include "data/blend.hpp"
#include "data/source_order.hpp"
#include "data/split.hpp"
#include "orthant/data.hpp"
#include "orthant/error.hpp"

namespace orthant {

using std::to_string;

namespace {

void check_weights(const DataSettings& settings, const std::vector<double>& w) {
  if (w.empty()) return;
  if (w.size() != settings.train.size())
    throw UsageError("data.weights has " + to_string(w.size()) + " values, but data.train has " +
                     to_string(settings.train.size()) +
                     " prefixes; give one weight for each, or none (then in proportion to tokens)");
  for (size_t k = 0; k < w.size(); ++k)
    if (!(w[k] > 0) || !std::isfinite(w[k]))
      throw UsageError("data.weights[" + to_string(k) + "] (" + settings.train[k] + ") is " + to_string(w[k]) +
                       "; weights are positive numbers: leave a prefix out rather than giving it none");
}

}  // namespace

/// Opens and orders the sources of one stream.
class StreamBuilder {
 public:
  StreamBuilder(const DataSettings& settings, const char* key, int64_t samples)
      : settings_(settings), key_(key), samples_(samples) {
    if (settings.sequence < 1)
      throw UsageError("data.sequence is " + to_string(settings.sequence) + "; it must be at least 1");
    if (samples < 1)
      throw UsageError((key_ == "data.train" ? std::string("data.samples") : "the number of validation samples") +
                       " is " + to_string(samples) + "; it must be at least 1");
    if (settings.seed < 0 || settings.seed > int64_t{0xffffffff})
      throw UsageError("data.seed is " + to_string(settings.seed) + "; it must lie in [0, 4294967295]");
  }

  /// Adds one part (0 training, 1 validation) of a split of a prefix.
  void add(const std::string& prefix, const std::array<double, 3>& shares, size_t part) {
    SourceSpec spec;
    for (size_t k = 0; k < prefixes_.size() && !spec.data; ++k)  // a prefix listed twice is opened once
      if (prefixes_[k] == prefix) spec.data = specs_[k].data;
    if (!spec.data) spec.data = std::make_shared<IndexedDataset>(prefix);
    const auto bounds = split_bounds(shares, spec.data->sequences());
    spec.begin = bounds[part];
    spec.end = bounds[part + 1];
    if (spec.begin == spec.end)
      throw UsageError("data.split is \"" + settings_.split + "\": of the " + to_string(spec.data->sequences()) +
                       " sequences of " + prefix + " none is left for " + (part == 0 ? "training" : "validation") +
                       "; give that part a larger share, or more data");
    spec.sequence = settings_.sequence;
    spec.seed = static_cast<uint32_t>(settings_.seed);
    int64_t tokens = 0;
    for (int64_t s = spec.begin; s < spec.end; ++s) tokens += spec.data->length(s);
    specs_.push_back(spec);
    prefixes_.push_back(prefix);
    tokens_.push_back(static_cast<double>(tokens));
  }

  /// Weights are empty for shares in proportion to tokens. `order_samples` may be empty too: see DataSettings.
  SampleStream build(const std::vector<double>& weights, const std::vector<WeightChange>& changes = {},
                     const std::vector<int64_t>& order_samples = {}) {
    ORTHANT_ENSURE(order_samples.empty() || order_samples.size() == specs_.size(), "one order length a source");
    SampleStream stream;
    stream.prefixes_ = prefixes_;
    stream.sequence_ = settings_.sequence;
    stream.samples_ = samples_;
    // in proportion to tokens, an empty part has no share: SourceOrder refuses it with its numbers
    const auto shares = normalised(weights.empty() ? tokens_ : weights);
    const bool mixed = specs_.size() > 1;
    std::vector<int64_t> limits;
    for (size_t k = 0; k < specs_.size(); ++k) {
      specs_[k].samples =
          order_samples.empty() ? samples_for_share(samples_, shares[k], mixed) : order_samples[k];
      stream.orders_.push_back(std::make_unique<SourceOrder>(specs_[k]));
      limits.push_back(stream.orders_.back()->available());
    }
    stream.weights_ = mixed ? normalised(shares) : std::vector<double>{1.0};
    if (!mixed) return stream;
    std::vector<Blend::Segment> segments{{0, stream.weights_}};
    for (const WeightChange& c : changes)
      segments.push_back({c.first_sample, normalised(normalised(c.weights.empty() ? tokens_ : c.weights))});
    stream.blend_ = std::make_unique<Blend>(std::move(segments), limits);
    // after a change of weights the orders need not hold N: whoever opens the stream knows how many it takes
    if (changes.empty() && !stream.blend_->holds(samples_)) {
      const auto d = static_cast<size_t>(stream.blend_->exhausted());
      throw UsageError(key_ + ": the mixture of " + to_string(samples_) + " samples asks " + prefixes_[d] +
                       " (share " + to_string(stream.weights_[d]) + ") for more than the " + to_string(limits[d]) +
                       " samples in its " + to_string(stream.orders_[d]->epochs()) + " epochs, after " +
                       to_string(stream.blend_->available()) +
                       " samples; raise its weight in data.weights or merge small sources");
    }
    return stream;
  }

 private:
  const DataSettings& settings_;
  std::string key_;
  int64_t samples_;
  std::vector<SourceSpec> specs_;
  std::vector<std::string> prefixes_;
  std::vector<double> tokens_;
};

SampleStream::SampleStream() = default;
SampleStream::~SampleStream() = default;
SampleStream::SampleStream(SampleStream&&) noexcept = default;
SampleStream& SampleStream::operator=(SampleStream&&) noexcept = default;

SampleStream SampleStream::train(const DataSettings& settings) {
  if (settings.train.empty()) throw UsageError("data.train is empty; give the prefix of at least one dataset");
  check_weights(settings, settings.weights);
  for (const WeightChange& change : settings.changes) check_weights(settings, change.weights);
  const auto shares = parse_split(settings.split);
  StreamBuilder builder(settings, "data.train", settings.samples);
  for (const auto& prefix : settings.train) builder.add(prefix, shares, 0);
  return builder.build(settings.weights, settings.changes, settings.order_samples);
}

SampleStream SampleStream::valid(const DataSettings& settings, int64_t samples) {
  if (settings.valid.empty()) {
    if (settings.train.empty())
      throw UsageError("data.train and data.valid are empty; give the prefix of at least one dataset");
    check_weights(settings, settings.weights);
    const auto shares = parse_split(settings.split);
    StreamBuilder builder(settings, "data.train (validation part)", samples);
    for (const auto& prefix : settings.train) builder.add(prefix, shares, 1);
    return builder.build(settings.weights);
  }
  StreamBuilder builder(settings, "data.valid", samples);
  for (const auto& prefix : settings.valid) builder.add(prefix, {1.0, 0.0, 0.0}, 0);
  return builder.build({});
}

int64_t SampleStream::available() const { return blend_ ? blend_->available() : orders_[0]->available(); }
bool SampleStream::holds(int64_t n) const { return blend_ ? blend_->holds(n) : n <= orders_[0]->available(); }

int64_t SampleStream::exhausted() const { return blend_ ? blend_->exhausted() : 0; }
std::vector<int64_t> SampleStream::drawn(int64_t n) const {
  return blend_ ? blend_->drawn(n) : std::vector<int64_t>{n};
}

std::vector<SourceFacts> SampleStream::facts() const {
  std::vector<SourceFacts> all;
  for (const auto& order : orders_)
    all.push_back({order->data().documents(), order->data().tokens(), order->tokens_per_epoch(), order->wanted(),
                   order->epochs(), order->available()});
  return all;
}

std::vector<SamplePiece> SampleStream::pieces(int64_t i) const {
  if (i < 0 || !holds(i + 1))
    throw UsageError("sample " + to_string(i) + " is past the " + to_string(available()) +
                     " samples that data.samples = " + to_string(samples_) +
                     " laid out; a longer run needs a larger data.samples from its first start");
  int64_t source = 0, inner = i;
  if (blend_) std::tie(source, inner) = blend_->at(i);
  std::vector<SamplePiece> out;
  orders_[static_cast<size_t>(source)]->pieces(inner, out);
  for (auto& piece : out) piece.source = source;
  return out;
}

void SampleStream::sample(int64_t i, int32_t* row) const {
  for (const auto& piece : pieces(i)) {
    const IndexedDataset& data = orders_[static_cast<size_t>(piece.source)]->data();
    data.read(piece.sequence, piece.offset, piece.tokens, row);
    for (int64_t k = 0; vocab_ > 0 && k < piece.tokens; ++k) {
      if (row[k] >= 0 && row[k] < vocab_) continue;
      int64_t position = piece.offset + k;
      for (int64_t s = data.document_begin(piece.document); s < piece.sequence; ++s) position += data.length(s);
      throw DataError(data.prefix() + ".bin: token " + to_string(position) + " of document " +
                      to_string(piece.document) + " (both from 0) is " + to_string(row[k]) +
                      ", but the model's vocabulary is " + to_string(vocab_) +
                      " (model.vocab); ids must lie in [0, " + to_string(vocab_ - 1) +
                      "]: was the data made with another tokenizer?");
    }
    row += piece.tokens;
  }
}

}  // namespace orthant
