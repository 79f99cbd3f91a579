// See verify_run.hpp.
#include "train/verify_run.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "deck/all_keys.hpp"
#include "optim/lr.hpp"
#include "support/agree.hpp"
#include "train/self_test.hpp"

namespace orthant {

LayoutRun::LayoutRun(MPI_Comm comm, RunPlan plan, int64_t steps, int64_t stream_steps)
    : plan_(std::move(plan)), mesh_(comm, plan_.mesh) {
  check_memory_here();
  session_ = std::make_unique<Session>(plan_, mesh_, true);
  if (plan_.reproducible) collectively(mesh_.cart(), [&] { check_reproducible(*session_); });
  collectively(
      mesh_.cart(), [&] { fill_weights(*session_); }, mesh_.where());
  publish_weights(*session_);
  open_data(stream_steps, steps);
  train(steps,
        plan_.deck[keys::optimizer::decay_steps] > 0 ? plan_.deck[keys::optimizer::decay_steps] : stream_steps);
  view_ = std::make_unique<StateView>(*session_);
}

void LayoutRun::check_memory_here() const {
  MPI_Comm node = MPI_COMM_NULL;
  int on_node = 1;
  ORTHANT_MPI(MPI_Comm_split_type(mesh_.cart(), MPI_COMM_TYPE_SHARED, mesh_.rank(), MPI_INFO_NULL, &node));
  ORTHANT_MPI(MPI_Comm_size(node, &on_node));
  ORTHANT_MPI(MPI_Comm_free(&node));
  collectively(mesh_.cart(), [&] {
    check_memory(plan_, planned_memory(plan_, coordinates_of(plan_.mesh, mesh_.rank())),
                 memory_limit(plan_.deck, on_node));
  });
}

void LayoutRun::open_data(int64_t stream_steps, int64_t steps) {
  collectively(mesh_.cart(), [&] {
    const Deck& deck = plan_.deck;
    const int64_t global = plan_.global_batch(),
                  samples = deck[keys::data::samples] > 0 ? deck[keys::data::samples] : stream_steps * global;
    DataSettings d = data_settings(deck, samples);
    stream_.emplace(SampleStream::train(d));
    stream_->check_vocab(plan_.model.vocab);
    if (!stream_->holds(steps * global))
      throw UsageError(
          fmt::format("data.samples = {} fixes a stream of {} samples, and --steps {} with batch.global = {} needs "
                      "{}; take fewer steps, or a larger data.samples",
                      samples, stream_->available(), steps, global, steps * global));
    if (const auto& masks = deck[keys::data::mask]; !masks.empty()) {
      d.train = masks;
      mask_.emplace(SampleStream::train(d));
      loss_mask_.mask = &*mask_;
    }
    if (deck[keys::data::eod_mask_loss]) loss_mask_.eod = eod("data.eod_mask_loss");
    facts_ = token_facts(plan_, -1);
    if (facts_.document_mask || facts_.reset_positions)
      facts_.eod = eod(facts_.document_mask ? "data.document_mask" : "data.reset_positions");
  });
}

int64_t LayoutRun::eod(const char* asked_by) const {
  if (plan_.deck.has(keys::data::eod)) return plan_.deck[keys::data::eod];
  const std::string& name = plan_.deck[keys::data::tokenizer];
  if (name.empty())
    throw UsageError(std::string(asked_by) +
                     " needs to know which token ends a document: set data.eod, or data.tokenizer");
  const auto id = make_tokenizer(name)->eod();
  if (!id) throw UsageError("data.tokenizer = \"" + name + "\" knows no token that ends a document; set data.eod");
  return *id;
}

void LayoutRun::train(int64_t steps, int64_t decay_steps) {
  Batches batches(*stream_, batch_shape(*session_), loss_mask_, facts_);
  const OptimizerSettings settings = optimizer_settings(plan_.deck);
  const LrSchedule schedule = lr_schedule(plan_.deck, decay_steps);
  Timers timers;
  for (int64_t step = 1; step <= steps; ++step) {
    collectively(
        mesh_.cart(), [&] { batches.load_rows((step - 1) * plan_.global_batch()); }, mesh_.where());
    batches.count(session_->ctx);
    const double lr = lr_at(schedule, step);
    const StepResult r = train_step(
        *session_, [&](int64_t j) { return batches.micro(session_->ctx, j); }, batches.valid_tokens(), settings, lr,
        step, timers);
    curve_.loss.push_back(r.loss);
    curve_.norm.push_back(r.grad_norm);
    reach_ += lr;
  }
}

bool fits_one_rank(const RunPlan& plan, std::string* why_not) {
  try {
    check_memory(plan, planned_memory(plan, Coordinates{}), memory_limit(plan.deck, 1));
    return true;
  } catch (const UsageError& e) {
    *why_not = e.what();
    return false;
  }
}

}  // namespace orthant
