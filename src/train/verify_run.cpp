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
  collectively(mesh_.cart(), [&] {
    check_memory(plan_, planned_memory(plan_, coordinates_of(plan_.mesh, mesh_.rank())),
                 memory_limit(plan_.deck, mesh_.ranks_on_node()));
  });
}

void LayoutRun::open_data(int64_t stream_steps, int64_t steps) {
  collectively(mesh_.cart(), [&] {
    const Deck& deck = plan_.deck;
    const int64_t global = plan_.global_batch(),
                  samples = deck[keys::data::samples] > 0 ? deck[keys::data::samples] : stream_steps * global;
    data_.emplace(plan_, samples);
    if (!data_->stream().holds(steps * global))
      throw UsageError(
          fmt::format("data.samples = {} fixes a stream of {} samples, and --steps {} with batch.global = {} needs "
                      "{}; take fewer steps, or a larger data.samples",
                      samples, data_->stream().available(), steps, global, steps * global));
  });
}

void LayoutRun::train(int64_t steps, int64_t decay_steps) {
  Batches batches(data_->stream(), batch_shape(*session_), data_->loss_mask(), data_->facts());
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
