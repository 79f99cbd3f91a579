// The training job, in eight steps (see Job::run).
#include "train/loop.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "backends/device_peaks.hpp"
#include "checkpoint/hf_live_export.hpp"
#include "deck/all_keys.hpp"
#include "deck/changes.hpp"
#include "support/agree.hpp"
#include "support/run_folder.hpp"
#include "train/console.hpp"
#include "train/data_position.hpp"
#include "train/extras.hpp"
#include "train/goodput.hpp"
#include "train/guard.hpp"
#include "train/replica_check.hpp"
#include "train/rollback.hpp"
#include "train/run_costs.hpp"
#include "train/run_saves.hpp"
#include "train/self_test.hpp"
#include "train/signals.hpp"
#include "train/step.hpp"
#include "train/stragglers.hpp"
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
      // first: it reads how the life before ended
      goodput_ = std::make_unique<Goodput>(output, GoodputFacts{folder_->lives(), job_id(), mesh_.ranks(), mesh_.nodes(), system_time().begun});
      folder_->carry([this] { return goodput_->numbers(); });
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
      if (guard_.watches_spikes()) session_->judge = [this](double loss, double norm) { return agreed(guard_.judge(loss, norm)); };
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
      const auto begin = Clock::now();
      const StateView view(*session_);
      state_ = load_checkpoint(comm_, *from, view.pieces(), lead_ ? &found : nullptr, mode == "auto" ? Trust::sizes : Trust::checksums, lead_ ? compare : nullptr);
      position_.emplace(DataPosition::resume(plan_.deck, state_, steps_, global));
      resumed_ = *from;
      load_seconds_ = seconds_since(begin);
    }
    publish_weights(*session_);
    settle_state();
    collectively(comm_, [&] {
      if (!lead_) return;  // a save takes them from rank 0
      extras_ = run_extras(plan_, from ? &found : nullptr);
      for (const AxisPlacement& a : mesh_.placement()) extras_.mesh += fmt::format("{}{} {}", extras_.mesh.empty() ? "" : ", ", name_of(a.axis), a.size);
      if (export_) export_->carry(extras_);
    });
  }

  /// After state_ was loaded.
  void settle_state() {
    if (const int64_t given = plan_.deck[keys::optimizer::decay_steps]; given > 0) state_.decay_steps = given;
    else if (state_.decay_steps == 0) state_.decay_steps = steps_;
    guard_.load(state_);
    session_->loss_scale.load(state_);
    if (session_->fp8) session_->fp8->publish();
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
    std::string ranks = ranks_text(mesh_, session_->backend->name() == "cuda" ? session_->backend->describe() : "no GPU", omp_get_max_threads());
    names_ = texts_of_ranks(comm_, mesh_.where());
    if (!plan_.sleep.on) stragglers_.emplace(mesh_, names_);
    if (!lead_) return;
    described_ = session_->backend->describe();
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
    const double peak = peak_flops(*session_->backend, plan_.precision.compute);
    costs_.emplace(mesh_, *session_, timers_);
    TimeLeft time_left(plan_.deck, lead_);
    watchdog_ = std::make_unique<Watchdog>(mesh_, session_->axes->traffic(), timers_, plan_.deck[keys::guard::watchdog_s], [this](const std::string& report) {
      if (folder_) end_life("failed", report, Exit::fault);
    });
    if (goodput_) goodput_->ready(state_.step, load_seconds_);
    double window_loss = 0;
    int64_t window = 0;
    if (state_.step >= steps_) stop_reason_ = "";
    while (state_.step < steps_) {
      auto begin = Clock::now();
      const int64_t step = state_.step + 1;
      watchdog_->begin(step);
      costs_->begin_step(step);
      const double lr = lr_at(schedule, step);
      StepResult r = plan_.sleep.on ? sleep_step(lr, step) : real_step(lr, step);
      double seconds = seconds_since(begin);
      state_.step = step;
      state_.tokens += plan_.global_batch() * plan_.sequence();
      if (position_) position_->advance(plan_.global_batch());

      MetricsRow row;
      StepLine line{step, steps_, r.loss, lr, r.grad_norm, static_cast<double>(plan_.global_batch() * plan_.sequence()) / seconds, seconds, 0, 0};
      line.tflops_per_rank = flops * line.tokens_per_s / mesh_.ranks() / 1e12;
      mean_seconds_ = mean_seconds_ == 0 ? seconds : 0.9 * mean_seconds_ + 0.1 * seconds;
      line.left_s = mean_seconds_ * static_cast<double>(steps_ - step);
      const StepCosts costs = costs_->step(r);
      if (!r.overflow) guard_.count(r.loss, r.grad_norm, r.bad);
      const std::vector<std::string> slow = stragglers_ ? stragglers_->step(costs.compute) : std::vector<std::string>{};

      const bool last = step == steps_;
      // a stop waits for the save in flight, or for one that this step begins anyway, and needs one of its own
      // a run that is about to go back needs no checkpoint of the place it goes back from
      const bool due = save_every > 0 && step % save_every == 0 && !guard_.wants_rollback();
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
        if (peak > 0) row.add("mfu", line.tflops_per_rank * 1e12 / peak);
        row.add("comm_exposed_s", costs.exposed);
        row.add("bubble", costs.bubble);
        row.add("memory_gb", (costs.memory + (saves_ ? saves_->copy_bytes() : 0)) / 1e9);
        if (saves_ && !save_due) add_save(row, Wait::save);
        if (session_->loss_scale.on()) row.add("loss_scale", r.loss_scale);
        if (r.skipped) row.add("skipped", int64_t{1});
        if (!slow.empty()) {
          row.add("slowest_rank", int64_t{stragglers_->slowest().rank});
          row.add("slowest_over_median", stragglers_->slowest().ratio);
        }
        if (!r.router.load.empty() && !plan_.sleep.on) add_router(row, r.router);
        goodput_->step(step);
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
        console_.line(step_text(line) + (r.overflow ? fmt::format("  (update skipped, loss scale {} -> {})", r.loss_scale, session_->loss_scale.value()) : r.skipped ? "  (update skipped)" : ""));
        window_loss = 0;
        window = 0;
      }
      for (const std::string& s : slow) console_.line(s);
      if (!described_.empty()) {  // a backend may have chosen libraries by the shapes that it has met
        if (const std::string now = session_->backend->describe(); now != described_) console_.line("backend   " + now);
        described_.clear();
      }
      if (r.skipped && std::isfinite(r.loss)) console_.line(fmt::format("step {}: not taken: {}", step, r.bad));
      if (const int64_t every = plan_.deck[keys::guard::replica_check_every]; every > 0 && saves_ && (step % every == 0 || save_due)) check_copies();
      // Before the save, so that a checkpoint means that the exports of its steps exist; where time is short, behind it.
      const bool exports = export_ && step % export_every == 0;
      if (exports && !stop) export_weights();
      if (save_due) {
        const Wait what = last || stop ? Wait::final_save : Wait::save;
        save(what);
        add_save(row, what);
        if (lead_) record([&] { folder_->extend_last(row); });
      }
      if (exports && stop) export_weights();
      console_.progress(line);
      if (const std::string end = guard_.exhausted(step); !end.empty()) throw Error(Exit::diverged, end, true);
      if (eval_every_ > 0 && (step % eval_every_ == 0 || last)) evaluate(step);
      if (stop && !last) return;
      if (guard_.wants_rollback() && !last) roll_back(r.bad);
    }
    stop_reason_.clear();
  }

  /// A word of any rank becomes the word of all: the lowest rank's that has one.
  std::string agreed(const std::string& mine) {
    int rank = mine.empty() ? mesh_.ranks() : mesh_.rank();
    ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &rank, 1, MPI_INT, MPI_MIN, comm_));
    return rank == mesh_.ranks() ? "" : !mine.empty() ? mine : fmt::format("rank {} finds a spike", rank);
  }

  /// Silent corruption, or a sum that some rank missed. Before a save, so that no checkpoint is made of either.
  void check_copies() {
    std::string text;
    watched("copies", [&] {
      const auto fp8 = session_->fp8 ? session_->fp8->pieces(true) : std::vector<StatePiece>{};
      text = differing_copies(comm_, held_pieces(*session_->backend, *session_->store, session_->optimizer.slots, fp8),
                              [this](int r) { return names_.at(static_cast<size_t>(r)); });
    });
    if (text.empty()) return;
    const std::string last_good = saves_->saved_step() >= 0 ? saves_->saved_folder() : resumed_;
    throw Error(Exit::fault, fmt::format("after step {} copies of the same numbers differ on ranks that hold them: {}. {}. Should it come back on the same node, leave that node out",
                                         state_.step, text, last_good.empty() ? "There is no checkpoint yet" : "The next start goes on from " + last_good), true);
  }

  /// The run goes on from its last checkpoint: on the same data, or behind all that led here.
  void roll_back(const std::string& why) {
    const auto begin = Clock::now();
    watched("rollback", [&] { saves_->finish(); });
    const std::string from = saves_->saved_step() >= 0 ? saves_->saved_folder() : resumed_;
    if (from.empty())
      throw Error(Exit::diverged, fmt::format("{} in step {}: {} asks for the last checkpoint, and this run has none yet", why, state_.step, plan_.deck.show(keys::guard::rollback_after.index())), true);
    const bool skip = plan_.deck[keys::guard::skip_data];
    const int64_t bad_step = state_.step, bad_sample = position_->next_sample();
    state_ = go_back(comm_, *session_, from);
    if (const std::string end = guard_.going_back(state_.step, !skip); !end.empty()) throw Error(Exit::diverged, end, true);
    settle_state();
    position_.emplace(DataPosition::resume(plan_.deck, state_, steps_, plan_.global_batch()));
    position_->opened(data_->stream());
    const int64_t behind = bad_sample - position_->next_sample();
    if (skip && !position_->skip(behind))
      throw Error(Exit::diverged, fmt::format("{} in step {}: guard.skip_data asks to pass over {} samples, and the stream has no more of them than run.steps needs; start a run with a larger "
                                              "data.samples, which leaves some to spare", why, bad_step, behind), true);
    collectively(comm_, [&] {
      if (!lead_) return;
      folder_->open_metrics(state_.step);
      goodput_->rollback(state_.step, seconds_since(begin), why);
    });
    console_.line(fmt::format("rollback  from step {} to {} ({}), {}: {}", bad_step, state_.step, from,
                              skip ? fmt::format("behind the {} samples of these steps", behind) : std::string("by the same data"), why));
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
    double loss = validation_loss(*session_, *valid_, LossMask{nullptr, data_->loss_mask().eod}, data_->facts(), plan_.deck[keys::log::eval_steps], timers_, [this](const RouterReport& r) { costs_->add_evaluated(r); });
    watchdog_->end(false);
    costs_->add_evaluation();
    if (!lead_) return;
    MetricsRow row;
    row.add("step", step);
    row.add("tokens", state_.tokens);
    row.add("valid_loss", loss);
    record([&] { folder_->append(row); });
    goodput_->step(step);
    console_.line(fmt::format("step {:>{}}/{}  validation loss {:.5f}  perplexity {:.3f}", step, std::to_string(steps_).size(), steps_, loss, std::exp(loss)));
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

  /// The last one is complete, or has failed, on return.
  void save(Wait what) {
    position_->store(state_);
    guard_.store(state_);
    session_->loss_scale.store(state_);
    if (goodput_) goodput_->save(state_.step, what);
    watched("checkpoint", [&] { saves_->save(state_, extras_, what == Wait::final_save); });
  }

  /// A wait beside the steps (files, copies compared) may hang like one: where one rank fails inside MPI-IO, the others wait
  /// for it. It may take ten steps' limit, or ten times the longest save.
  void watched(const char* phase, const std::function<void()>& work) {
    struct Watch {
      Job& job;
      const char* before;
      ~Watch() {
        job.watchdog_->end(false);
        job.timers_.enter(before);
      }
    } watch{*this, timers_.enter(phase)};
    watchdog_->begin(state_.step, 10, saves_ ? 10 * saves_->longest() : 0);
    work();
  }

  /// What saves cost this step, and of one that became durable how it went.
  void add_save(MetricsRow& row, Wait what) {
    if (const double stall = saves_->take_stall(); stall > 0) {
      row.add("stall_s", stall);
      if (goodput_) goodput_->stalled(stall, what);
    }
    const std::optional<SaveReport> durable = saves_->take_durable();
    if (!durable) return;
    if (goodput_) goodput_->saved(durable->seconds);
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
      LiveExportReport report;
      watched("export", [&] { report = export_->write(comm_, state_.step, view.pieces()); });
      console_.line(fmt::format("exported {} ({} in {:.2f} s)", report.folder, bytes_text(static_cast<double>(report.bytes)), report.seconds));
    } catch (const Error& e) {
      if (e.code() != Exit::data || !e.agreed()) throw;
      ++failed_exports_;
      if (lead_) std::fprintf(stderr, "orthant: export at step %lld failed (training goes on, %lld so far): %s\n", static_cast<long long>(state_.step), static_cast<long long>(failed_exports_), e.what());
    }
    timers_.add("export", seconds_since(begin));
    if (goodput_) goodput_->stalled(seconds_since(begin), Wait::exports);
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
      end_life("failed", e.what(), e.code());
    } catch (const Error&) {
      // the folder itself is what failed: the first error matters more
    }
  }

  void end_life(const std::string& state, const std::string& reason, Exit code) {
    if (goodput_) goodput_->end(state, state_.step, reason, static_cast<int>(code));
    folder_->status({state, state_.step, reason, static_cast<int>(code)});
  }

  int finish() {
    if (saves_ && !saves_->any() && state_.step >= steps_ && resumed_.empty()) save(Wait::final_save);
    if (saves_) timers_.add("checkpoint", saves_->waited());
    const bool save_failed = saves_ && saves_->last_failed();
    watchdog_.reset();
    costs_->write(folder_.get(), console_);
    ORTHANT_MPI(MPI_Bcast(&records_failed_, 1, MPI_INT, 0, comm_));
    if (records_failed_) throw DataError("the last rows of " + plan_.deck[keys::run::output] + "/metrics.jsonl could not be written", true);
    int code = save_failed ? static_cast<int>(Exit::data) : stop_reason_.empty() ? 0 : static_cast<int>(Exit::stopped);
    if (lead_) {
      std::string state = code == 0 ? "finished" : code == 75 ? "stopped" : "failed";
      std::string reason = save_failed ? "the last checkpoint could not be written" : stop_reason_;
      end_life(state, reason, static_cast<Exit>(code));
      console_.line(fmt::format("{} at step {}{} after {}", state, state_.step, reason.empty() ? "" : " (" + reason + ")", duration_text(seconds_since(begin_))));
      if (failed_exports_ > 0) console_.line(fmt::format("{} of {} exports could not be written to {}; see the messages above, or convert the checkpoints that are kept", failed_exports_, exports_, export_->folder()));
      if (save_failed) std::fprintf(stderr, "orthant: the last checkpoint could not be written to %s; see the message above\n", checkpoints_.c_str());
      folder_.reset();
    }
    ORTHANT_MPI(MPI_Barrier(comm_));
    return code;
  }

  RunPlan plan_;
  Mesh mesh_;
  MPI_Comm comm_;
  bool lead_;
  Console console_;
  std::string described_;  // the backend in the header, until the first step is through
  Clock::time_point begin_, told_;
  std::unique_ptr<RunFolder> folder_;
  std::unique_ptr<Goodput> goodput_;     ///< on rank 0, as folder_
  double load_seconds_ = 0;              ///< of reading the checkpoint that this life goes on from
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
  std::optional<RunCosts> costs_;
  StepGuard guard_{plan_.deck};
  std::optional<Stragglers> stragglers_;
  std::vector<std::string> names_;       ///< of all ranks, for messages; on rank 0
  int64_t steps_ = 0, eval_every_ = 0, exports_ = 0, failed_exports_ = 0;
  int records_failed_ = 0;
  double mean_seconds_ = 0;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<RunSaves> saves_;  // last: a save in flight ends before what it reads goes
};

}  // namespace

int train(MPI_Comm world, const std::string& deck, const std::vector<std::string>& overrides) { return Job(world, deck, overrides).run(); }

}  // namespace orthant
