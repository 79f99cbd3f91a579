// The training job, in eight steps (see Job::run).
#include "train/loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/hf_live_export.hpp"
#include "deck/all_keys.hpp"
#include "deck/changes.hpp"
#include "mesh/expected_traffic.hpp"
#include "support/agree.hpp"
#include "support/run_folder.hpp"
#include "train/console.hpp"
#include "train/data_position.hpp"
#include "train/extras.hpp"
#include "train/run_saves.hpp"
#include "train/self_test.hpp"
#include "train/signals.hpp"
#include "train/step.hpp"
#include "train/time_left.hpp"
#include "train/training_data.hpp"
#include "train/watchdog.hpp"

namespace orthant {

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

class Job {
 public:
  Job(MPI_Comm world, const std::string& deck, const std::vector<std::string>& overrides)
      : plan_(make_plan(world, deck, overrides)), mesh_(world, plan_.mesh), comm_(mesh_.cart()), lead_(mesh_.rank() == 0), console_(lead_) {}

  int run() {
    begin_ = Clock::now();
    watch_signals();
    open_exports();
    open_folder();     // 1 run folder and lock
    try {
      plan_memory();   // 2 the planned peak against what a rank may use
      build();         // 3 backend, axes, parameters, model, optimiser
      resume();        // 4 checkpoint, or initial weights
      open_data();     // 5 streams of samples
      open_records();  // 6 deck, metrics, header
      loop();          // 7 steps
      return finish(); // 8 final checkpoint and report
    } catch (const Error& e) {
      if (lead_ && folder_) note_failure(e);
      if (e.agreed()) throw;
      throw Error(e.code(), std::string(e.what()) + " [" + mesh_.where() + "]");
    }
  }

 private:
  void open_folder() {
    const std::string& output = plan_.deck[keys::run::output];
    checkpoints_ = plan_.deck.get_or(keys::checkpoint::folder, output + "/checkpoints");
    collectively(comm_, [&] {
      if (!lead_) return;
      folder_ = std::make_unique<RunFolder>(output);
      folder_->status({"running", 0, "starting", 0});
    });
    prepare_checkpoints_folder(comm_, checkpoints_, save_settings());
    if (export_) prepare_checkpoints_folder(comm_, export_->folder());
  }

  /// Before anything is made: a model that Hugging Face has no form for is refused, not met after n steps.
  void open_exports() {
    if (plan_.deck[keys::checkpoint::export_every] == 0 || plan_.sleep.on) return;
    collectively(comm_, [&] {
      try {
        export_.emplace(plan_.model, plan_.deck[keys::run::output] + "/exports", plan_.deck[keys::precision::compute]);
      } catch (const UsageError& e) {
        throw UsageError(fmt::format("checkpoint.export = {}: {}; or leave it at 0", plan_.deck[keys::checkpoint::export_every], e.what()));
      }
    });
  }

  void plan_memory() {
    collectively(comm_, [&] {
      limit_ = memory_limit(plan_.deck, mesh_.ranks_on_node());
      planned_ = planned_memory(plan_, coordinates_of(plan_.mesh, mesh_.rank()));
      check_memory(plan_, planned_, limit_);
    });
  }

  void build() {
    session_ = std::make_unique<Session>(plan_, mesh_, true);
    if (plan_.reproducible && !plan_.sleep.on) collectively(comm_, [&] { check_reproducible(*session_); });
    if (!plan_.sleep.on) {
      const double room = limit_.bytes - static_cast<double>(planned_.total_peak());
      saves_ = std::make_unique<RunSaves>(comm_, *session_, console_, RunSavesSettings{checkpoints_, job_id(), save_settings(), plan_.deck[keys::checkpoint::async],
                                                                                      static_cast<int64_t>(std::max(0.0, room))});
      session_->before_update = [this] { saves_->release_state(); };
    }
    settings_ = optimizer_settings(plan_.deck);
    steps_ = plan_.deck[keys::run::steps];
  }

  void resume() {
    if (plan_.sleep.on) return;  // there are no weights
    const std::string& mode = plan_.deck[keys::checkpoint::resume];
    std::optional<std::string> from;
    std::vector<std::string> passed_over;
    if (mode == "auto") from = find_checkpoint(comm_, checkpoints_, &passed_over);
    else if (mode != "never") from = mode;
    for (const std::string& s : passed_over) console_.line("checkpoint passed over: " + s);

    const int64_t global = plan_.global_batch();
    CheckpointExtras found;  // on rank 0
    if (!from) {
      collectively(comm_, [&] { fill_weights(*session_); }, mesh_.where());
      position_.emplace(DataPosition::start(plan_.deck, steps_, global));
    } else {
      const AcceptCheckpoint compare = [&](const TrainState& state, const CheckpointExtras& extras) {
        const auto changes = deck_changes(extras.deck_text, plan_.deck, {state.samples, state.decay_steps, state.has_optimizer});
        refuse_changes(changes, *from);
        notes_ = tell_changes(changes);
      };
      const StateView view(*session_);
      state_ = load_checkpoint(comm_, *from, view.pieces(), lead_ ? &found : nullptr, mode == "auto" ? Trust::sizes : Trust::checksums, lead_ ? compare : nullptr);
      position_.emplace(DataPosition::resume(plan_.deck, state_, steps_, global));
      resumed_ = *from;
    }
    publish_weights(*session_);
    if (const int64_t given = plan_.deck[keys::optimizer::decay_steps]; given > 0) state_.decay_steps = given;
    else if (state_.decay_steps == 0) state_.decay_steps = steps_;
    skips_ = state_.integers.count("skips") ? state_.integers["skips"] : 0;
    collectively(comm_, [&] {
      if (!lead_) return;  // a save takes them from rank 0
      extras_ = run_extras(plan_, from ? &found : nullptr);
      for (const AxisPlacement& a : mesh_.placement()) extras_.mesh += fmt::format("{}{} {}", extras_.mesh.empty() ? "" : ", ", name_of(a.axis), a.size);
      if (export_) export_->carry(extras_);
    });
  }

  void open_data() {
    if (plan_.sleep.on) return;
    collectively(comm_, [&] {
      data_.emplace(plan_, position_->settings());
      position_->opened(data_->stream());
      eval_every_ = plan_.deck[keys::log::eval_every];
      if (eval_every_ > 0) {
        valid_.emplace(SampleStream::valid(data_settings(plan_.deck, position_->samples()), plan_.deck[keys::log::eval_steps] * plan_.global_batch()));
        valid_->check_vocab(plan_.model.vocab);
      }
    });
    batches_.emplace(data_->stream(), batch_shape(*session_), data_->loss_mask(), data_->facts());
  }

  /// Only now may the run folder change: a start refused above leaves the deck and the metrics of the run as they were.
  void open_records() {
    collectively(comm_, [&] {
      if (!lead_) return;
      folder_->write("deck.toml", plan_.deck.resolved());
      folder_->open_metrics(state_.step);
    });
    std::string ranks = ranks_text(mesh_);
    if (!lead_) return;
    console_.line(header_text(*session_, mesh_, planned_, limit_, steps_));
    console_.line("ranks\n" + ranks);
    if (saves_) console_.line("saves     " + saves_->text());
    if (resumed_.empty()) console_.line(plan_.deck[keys::model::load].empty() ? "start     from initial weights" : "start     from " + plan_.deck[keys::model::load]);
    else console_.line(fmt::format("start     from {} (step {}), life {} of this run", resumed_, state_.step, folder_->lives()));
    for (const std::string& note : notes_) console_.line("changed   " + note);
    if (position_)
      for (const std::string& note : position_->notes()) console_.line("data      " + note);
  }

  void loop() {
    const int64_t log_every = plan_.deck[keys::log::every], save_every = plan_.deck[keys::checkpoint::every], export_every = plan_.deck[keys::checkpoint::export_every];
    const LrSchedule schedule = lr_schedule(plan_.deck, state_.decay_steps);
    const double flops = flops_per_token(plan_.model, plan_.sequence());
    session_->axes->traffic().clear();
    TimeLeft time_left(plan_.deck, lead_);
    watchdog_ = std::make_unique<Watchdog>(mesh_, session_->axes->traffic(), timers_, plan_.deck[keys::guard::watchdog_s], [this](const std::string& report) {
      if (folder_) folder_->status({"failed", state_.step, report, static_cast<int>(Exit::fault)});
    });
    double window_loss = 0;
    int64_t window = 0;
    if (state_.step >= steps_) stop_reason_ = "";
    while (state_.step < steps_) {
      auto begin = Clock::now();
      const int64_t step = state_.step + 1;
      watchdog_->begin(step);
      const double lr = lr_at(schedule, step);
      StepResult r = plan_.sleep.on ? sleep_step(lr, step) : real_step(lr, step);
      if (plan_.sleep.on) trained_.off_rank += uniform_rows(traffic_plan(plan_));  // routing is even where nothing is computed
      else trained_.add(r.router);
      double seconds = seconds_since(begin);
      state_.step = step;
      state_.tokens += plan_.global_batch() * plan_.sequence();
      if (position_) position_->advance(plan_.global_batch());
      ++steps_here_;

      MetricsRow row;
      StepLine line{step, steps_, r.loss, lr, r.grad_norm, static_cast<double>(plan_.global_batch() * plan_.sequence()) / seconds, seconds, 0, 0};
      line.tflops_per_rank = flops * line.tokens_per_s / mesh_.ranks() / 1e12;
      mean_seconds_ = steps_here_ == 1 ? seconds : 0.9 * mean_seconds_ + 0.1 * seconds;
      line.left_s = mean_seconds_ * static_cast<double>(steps_ - step);
      const StepCosts costs = step_costs(r);
      skips_ = r.skipped ? skips_ + 1 : 0;

      const bool last = step == steps_;
      // a stop waits for the save in flight, or for one that this step begins anyway, and needs one of its own
      const bool due = save_every > 0 && step % save_every == 0;
      const bool stop = agree_once_a_step(time_left.over(seconds, saves_ ? saves_->longest() * (saves_->in_flight() || due ? 2 : 1) : 0));
      watchdog_->end();
      const bool save_due = saves_ && (last || stop || due);
      if (lead_) {
        row.add("step", step);
        row.add("tokens", state_.tokens);
        row.add("loss", r.loss);
        row.add("grad_norm", r.grad_norm);
        row.add("lr", lr);
        row.add("seconds", seconds);
        row.add("tokens_per_s", line.tokens_per_s);
        row.add("tflops_per_rank", line.tflops_per_rank);
        row.add("comm_exposed_s", costs.exposed);
        row.add("bubble", costs.bubble);
        row.add("memory_gb", (costs.memory + (saves_ ? saves_->copy_bytes() : 0)) / 1e9);
        if (saves_ && !save_due) add_save(row);
        if (r.skipped) row.add("skipped", int64_t{1});
        if (!r.router.load.empty() && !plan_.sleep.on) add_router(row, r.router);
        // before the save: a kill behind it must not leave a checkpoint whose step has no row
        record([&] {
          folder_->append(row);
          if (last || stop || seconds_since(told_) > 1) {  // often enough for people and job scripts, and cheap on any file system
            folder_->status({"running", step, "", 0});
            told_ = Clock::now();
          }
        });
      }
      window_loss += r.loss;
      ++window;
      if (step % log_every == 0 || last || stop) {
        line.loss = window_loss / static_cast<double>(window);  // the mean of all steps since the last line
        console_.line(step_text(line) + (r.skipped ? "  (update skipped)" : ""));
        window_loss = 0;
        window = 0;
      }
      // Before the save, so that a checkpoint means that the exports of its steps exist; where time is short, behind it.
      const bool exports = export_ && step % export_every == 0;
      if (exports && !stop) export_weights();
      if (save_due) {
        save(last || stop);
        add_save(row);
        if (lead_) record([&] { folder_->extend_last(row); });
      }
      if (exports && stop) export_weights();
      console_.progress(line);
      if (skips_ > plan_.deck[keys::guard::max_skips])
        throw Error(Exit::diverged, fmt::format("loss or gradient norm was not finite in {} steps in a row (step {} the last); guard.max_skips = {} allows no more", skips_, step,
                                                plan_.deck[keys::guard::max_skips]), true);
      if (eval_every_ > 0 && (step % eval_every_ == 0 || last)) evaluate(step);
      if (stop && !last) return;
    }
    stop_reason_.clear();
  }

  static void add_router(MetricsRow& row, const RouterReport& r) {
    row.add("aux_loss", r.aux_loss);
    row.add("dropped", r.dropped);
    row.add("load_max_over_mean", r.load_max_over_mean);
    std::vector<int64_t> load(r.load[0].size(), 0);
    for (const auto& layer : r.load)
      for (size_t e = 0; e < layer.size(); ++e) load[e] += layer[e];
    row.add("expert_load", load);
  }

  StepResult real_step(double lr, int64_t step) {
    auto begin = Clock::now();
    collectively(comm_, [&] { batches_->load_rows(position_->next_sample()); }, mesh_.where());
    batches_->count(session_->ctx);
    timers_.add("data", seconds_since(begin));
    return train_step(*session_, [&](int64_t j) { return batches_->micro(session_->ctx, j); }, batches_->valid_tokens(), settings_, lr, step, timers_);
  }

  /// run.timing = "sleep": the step's actions and messages without numbers. All ranks begin together, so that the span
  /// of a step is that of its schedule.
  StepResult sleep_step(double lr, int64_t step) {
    ORTHANT_MPI(MPI_Barrier(comm_));
    return train_step(*session_, [&](int64_t) { return blank_batch(session_->ctx, plan_.micro(), plan_.sequence(), token_facts(plan_, -1)); }, 1, settings_, lr, step, timers_);
  }

  void evaluate(int64_t step) {
    watchdog_->begin(step, static_cast<double>(plan_.deck[keys::log::eval_steps]));
    double loss = validation_loss(*session_, *valid_, LossMask{nullptr, data_->loss_mask().eod}, data_->facts(), plan_.deck[keys::log::eval_steps], timers_, [this](const RouterReport& r) { evaluated_.add(r); });
    watchdog_->end(false);
    ++evals_;
    if (!lead_) return;
    MetricsRow row;
    row.add("step", step);
    row.add("tokens", state_.tokens);
    row.add("valid_loss", loss);
    record([&] { folder_->append(row); });
    console_.line(fmt::format("step {:>{}}/{}  validation loss {:.5f}  perplexity {:.3f}", step, std::to_string(steps_).size(), steps_, loss, std::exp(loss)));
  }

  struct StepCosts {
    std::vector<std::pair<std::string, double>> exposed;  ///< seconds waited for each axis with more than one rank, mean over ranks
    double bubble = 0;                                     ///< idle share of the schedule's span, mean over ranks; 0 without a pipeline
    double memory = 0;                                     ///< largest peak, bytes
  };

  /// On rank 0, from all ranks.
  StepCosts step_costs(const StepResult& r) {
    Traffic& traffic = session_->axes->traffic();
    const double data = traffic.take_seconds(AxisName::dp) + traffic.take_seconds(AxisName::shard) + traffic.take_seconds(AxisName::replica);
    const double experts = traffic.take_seconds(AxisName::edp_shard) + traffic.take_seconds(AxisName::edp_replica);
    double sums[6] = {traffic.take_seconds(AxisName::tp) + traffic.take_seconds(AxisName::tp_rep), traffic.take_seconds(AxisName::cp),
                      traffic.take_seconds(AxisName::pp) + traffic.take_seconds(AxisName::tie), data + experts, traffic.take_seconds(AxisName::ep), r.busy_s};
    double most[2] = {static_cast<double>(session_->backend->account().total_peak()), r.span_s};
    double sum[6] = {}, largest[2] = {};
    ORTHANT_MPI(MPI_Reduce(sums, sum, 6, MPI_DOUBLE, MPI_SUM, 0, comm_));
    ORTHANT_MPI(MPI_Reduce(most, largest, 2, MPI_DOUBLE, MPI_MAX, 0, comm_));
    StepCosts out;
    const AxisName axes[5] = {AxisName::tp, AxisName::cp, AxisName::pp, AxisName::dp, AxisName::ep};
    for (int i = 0; i < 5; ++i)
      if (mesh_.size(axes[i]) > 1) out.exposed.emplace_back(name_of(axes[i]), sum[i] / mesh_.ranks());
    out.memory = largest[0];
    if (plan_.mesh.pp > 1 && largest[1] > 0) out.bubble = 1 - sum[5] / mesh_.ranks() / largest[1];
    return out;
  }

  /// Once a step: a signal on any rank, or the time limit as rank 0 sees it, stops all ranks at the same step; a save
  /// that has ended on all of them is told.
  bool agree_once_a_step(bool time_over) {
    int flags[3] = {signal_seen(), time_over ? 1 : 0, saves_ && saves_->busy() ? 1 : 0};
    ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, flags, 3, MPI_INT, MPI_MAX, comm_));
    if (saves_ && !flags[2]) saves_->finish();
    if (flags[0]) stop_reason_ = fmt::format("signal {}", flags[0]);
    else if (flags[1]) stop_reason_ = "time limit";
    return flags[0] || flags[1];
  }

  SaveSettings save_settings() const {
    return {static_cast<int>(plan_.deck[keys::checkpoint::keep]), plan_.deck[keys::checkpoint::files], plan_.deck[keys::checkpoint::mpi_info]};
  }

  /// With `wait` the checkpoint is complete, or has failed, on return.
  void save(bool wait) {
    position_->store(state_);
    state_.integers["skips"] = skips_;
    saves_->save(state_, extras_, wait);
  }

  /// What saves cost this step, and of one that became durable how it went.
  void add_save(MetricsRow& row) {
    if (const double stall = saves_->take_stall(); stall > 0) row.add("stall_s", stall);
    const std::optional<SaveReport> durable = saves_->take_durable();
    if (!durable) return;
    row.add("durable_s", durable->seconds);
    row.add("saved_bytes", durable->bytes);
    row.add("saved_files", durable->files);
    row.add("saved_gb_per_s", durable->gb_per_s());
  }

  void export_weights() {
    auto begin = Clock::now();
    ++exports_;
    try {
      StateView view(*session_);
      const LiveExportReport report = export_->write(comm_, state_.step, view.pieces());
      console_.line(fmt::format("exported {} ({} in {:.2f} s)", report.folder, bytes_text(static_cast<double>(report.bytes)), report.seconds));
    } catch (const Error& e) {
      if (e.code() != Exit::data || !e.agreed()) throw;
      ++failed_exports_;
      if (lead_) std::fprintf(stderr, "orthant: export at step %lld failed (training goes on, %lld so far): %s\n", static_cast<long long>(state_.step), static_cast<long long>(failed_exports_), e.what());
    }
    timers_.add("export", seconds_since(begin));
  }

  /// Rows and status, on rank 0: a full disk does not end training, and what has no room now is written when there is some.
  void record(const std::function<void()>& write) {
    const Timed timed(timers_, "metrics");
    try {
      write();
      records_failed_ = 0;
    } catch (const DataError& e) {
      if (!records_failed_) std::fprintf(stderr, "orthant: step %lld: %s (training goes on)\n", static_cast<long long>(state_.step), e.what());
      records_failed_ = 1;
    }
  }

  void note_failure(const Error& e) {
    try {
      folder_->status({"failed", state_.step, e.what(), static_cast<int>(e.code())});
    } catch (const Error&) {
      // the folder itself is what failed: the first error matters more
    }
  }

  int finish() {
    if (saves_ && !saves_->any() && state_.step >= steps_ && resumed_.empty()) save(true);
    if (saves_) timers_.add("checkpoint", saves_->waited());
    const bool save_failed = saves_ && saves_->last_failed();
    watchdog_.reset();
    write_traffic();
    write_timers();
    ORTHANT_MPI(MPI_Bcast(&records_failed_, 1, MPI_INT, 0, comm_));
    if (records_failed_) throw DataError("the last rows of " + plan_.deck[keys::run::output] + "/metrics.jsonl could not be written", true);
    int code = save_failed ? static_cast<int>(Exit::data) : stop_reason_.empty() ? 0 : static_cast<int>(Exit::stopped);
    if (lead_) {
      std::string state = code == 0 ? "finished" : code == 75 ? "stopped" : "failed";
      std::string reason = save_failed ? "the last checkpoint could not be written" : stop_reason_;
      folder_->status({state, state_.step, reason, code});
      console_.line(fmt::format("{} at step {}{} after {}", state, state_.step, reason.empty() ? "" : " (" + reason + ")", duration_text(seconds_since(begin_))));
      if (failed_exports_ > 0) console_.line(fmt::format("{} of {} exports could not be written to {}; see the messages above, or convert the checkpoints that are kept", failed_exports_, exports_, export_->folder()));
      if (save_failed) std::fprintf(stderr, "orthant: the last checkpoint could not be written to %s; see the message above\n", checkpoints_.c_str());
      folder_.reset();
    }
    ORTHANT_MPI(MPI_Barrier(comm_));
    return code;
  }

  /// Bytes counted on every rank, summed, beside the closed form.
  void write_traffic() {
    TrafficTable expected;
    for (const auto& [key, bytes] : expected_step_traffic(traffic_plan(plan_))) expected[key] += bytes * steps_here_;
    for (const auto& [key, bytes] : routed_traffic(traffic_plan(plan_), trained_.off_rank, trained_.kept, true)) expected[key] += bytes;
    for (const auto& [key, bytes] : routed_traffic(traffic_plan(plan_), evaluated_.off_rank, evaluated_.kept, false)) expected[key] += bytes;
    for (const auto& [key, bytes] : expected_eval_traffic(traffic_plan(plan_))) expected[key] += bytes * evals_ * plan_.deck[keys::log::eval_steps];
    struct Row {
      long long calls = 0, bytes = 0, expected = 0;
    };
    std::map<std::string, std::map<std::string, Row>> rows;  // shards and replicas of them are both dp
    for (int a = 0; a < axis_names; ++a) {
      auto axis = static_cast<AxisName>(a);
      for (const char* op : {"all_reduce", "all_gather", "reduce_scatter", "exchange", "shift"}) {
        const auto& entries = session_->axes->traffic().entries();
        auto it = entries.find({axis, op});
        // n x bytes on each rank: the sum over ranks divides by n. The tie has one rank at most stages: their n is 1,
        // and they send nothing.
        long long mine[2] = {it == entries.end() ? 0 : it->second.scaled_bytes, it == entries.end() ? 0 : it->second.calls}, sum[2] = {0, 0};
        int size = mesh_.size(axis), largest = 1;
        ORTHANT_MPI(MPI_Reduce(mine, sum, 2, MPI_LONG_LONG, MPI_SUM, 0, comm_));
        ORTHANT_MPI(MPI_Reduce(&size, &largest, 1, MPI_INT, MPI_MAX, 0, comm_));
        Row row{sum[1], sum[0] / largest, expected.count({axis, op}) ? expected[{axis, op}] : 0};
        if (!row.bytes && !row.expected) continue;
        Row& all = rows[traffic_name(axis)][op];
        all.calls += row.calls;
        all.bytes += row.bytes;
        all.expected += row.expected;
      }
    }
    nlohmann::json axes = nlohmann::json::object();
    for (const auto& [axis, ops] : rows)
      for (const auto& [op, row] : ops) axes[axis].push_back({{"op", op}, {"calls", row.calls}, {"bytes", row.bytes}, {"expected_bytes", row.expected}});
    collectively(comm_, [&] {
      if (lead_) folder_->write("traffic.json", nlohmann::json{{"steps", steps_here_}, {"axes", axes}}.dump(1) + "\n");
    });
  }

  void write_timers() {
    std::string text = fmt::format("{:<16} {:>12} {:>12} {:>12}   seconds over {} steps, per rank\n", "phase", "min", "mean", "max", steps_here_);
    for (const char* phase : {"data", "forward", "backward", "weight gradients", "pipeline wait", "gradient sums", "gradient norm", "update", "validation", "checkpoint", "export"}) {
      auto it = timers_.seconds().find(phase);
      double mine = it == timers_.seconds().end() ? 0 : it->second, least = 0, most = 0, sum = 0;
      ORTHANT_MPI(MPI_Reduce(&mine, &least, 1, MPI_DOUBLE, MPI_MIN, 0, comm_));
      ORTHANT_MPI(MPI_Reduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, 0, comm_));
      ORTHANT_MPI(MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, comm_));
      if (most > 0) text += fmt::format("{:<16} {:>12.4f} {:>12.4f} {:>12.4f}\n", phase, least, sum / mesh_.ranks(), most);
    }
    collectively(comm_, [&] {
      if (lead_) folder_->write("timers.txt", text);
    });
  }

  RunPlan plan_;
  Mesh mesh_;
  MPI_Comm comm_;
  bool lead_;
  Console console_;
  Clock::time_point begin_, told_;
  std::unique_ptr<RunFolder> folder_;
  std::string checkpoints_, resumed_, stop_reason_;
  MemoryLimit limit_;
  MemoryAccount planned_;
  std::unique_ptr<Session> session_;
  OptimizerSettings settings_;
  TrainState state_;
  CheckpointExtras extras_;              ///< what travels with each save; on rank 0
  std::vector<std::string> notes_;       ///< what the deck changes about the run that it resumes; on rank 0
  std::optional<DataPosition> position_;
  std::optional<TrainingData> data_;
  std::optional<SampleStream> valid_;
  std::optional<Batches> batches_;
  std::optional<HfLiveExport> export_;
  Timers timers_;
  int64_t steps_ = 0, steps_here_ = 0, evals_ = 0, skips_ = 0, eval_every_ = 0, exports_ = 0, failed_exports_ = 0;
  struct Routed {
    int64_t off_rank = 0, kept = 0;
    void add(const RouterReport& r) {
      off_rank += r.off_rank_rows;
      kept += r.kept();
    }
  };
  Routed trained_, evaluated_;  ///< rows of tokens, for the traffic that only routing knows
  int records_failed_ = 0;
  double mean_seconds_ = 0;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<RunSaves> saves_;  // last: a save in flight ends before what it reads goes
};

}  // namespace

int train(MPI_Comm world, const std::string& deck, const std::vector<std::string>& overrides) { return Job(world, deck, overrides).run(); }

}  // namespace orthant
