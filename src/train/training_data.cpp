// See training_data.hpp.
#include "train/training_data.hpp"

#include "train/step.hpp"

namespace orthant {

namespace {

/// The token that ends a document, for the key `asked_by`.
int64_t end_of_document(const Deck& deck, const std::string& asked_by) {
  if (deck.has(keys::data::eod)) return deck[keys::data::eod];
  const std::string& name = deck[keys::data::tokenizer];
  if (name.empty()) throw UsageError(asked_by + " needs data.eod, or data.tokenizer to take it from");
  const auto id = make_tokenizer(name)->eod();
  if (!id) throw UsageError("data.tokenizer = \"" + name + "\" has no end-of-document token; set data.eod");
  return *id;
}

}  // namespace

TrainingData::TrainingData(const RunPlan& plan, int64_t samples)
    : TrainingData(plan, data_settings(plan.deck, samples)) {}

TrainingData::TrainingData(const RunPlan& plan, const DataSettings& settings)
    : stream_(SampleStream::train(settings)), facts_(token_facts(plan, -1)) {
  const Deck& deck = plan.deck;
  stream_.check_vocab(plan.model.vocab);
  if (const auto& masks = deck[keys::data::mask]; !masks.empty()) {
    DataSettings m = settings;  // changes of weights and lengths of orders too: a mask lies as its tokens do
    m.train = masks;
    mask_.emplace(SampleStream::train(m));
  }
  if (deck[keys::data::eod_mask_loss]) loss_eod_ = end_of_document(deck, "data.eod_mask_loss");
  if (facts_.document_mask || facts_.reset_positions)
    facts_.eod = end_of_document(deck, facts_.document_mask ? "data.document_mask" : "data.reset_positions");
}

}  // namespace orthant
