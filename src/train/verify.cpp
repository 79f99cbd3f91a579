// See verify.hpp.
#include "train/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <numeric>
#include <thread>

#include "orthant/model.hpp"
#include "support/agree.hpp"
#include "train/verify_layouts.hpp"
#include "train/verify_weights.hpp"

namespace orthant {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
/// A weight is named as different once it is off by this share of what the learning rates can have moved it: below
/// lies the rounding that every cut brings.
constexpr double share_of_reach = 0.01;

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string short_text(double x) { return x == 0 ? "0" : fmt::format("{:.2e}", x); }

/// Every line but the first moves in, as the first one does in the table.
std::string indented(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\n' ? std::string("\n    ") : std::string(1, c);
  return out;
}

/// Waits for all ranks without taking the cores of the one that still computes.
void wait_idle(MPI_Comm comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  ORTHANT_MPI(MPI_Ibarrier(comm, &request));
  for (int done = 0; !done;) {
    ORTHANT_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (!done) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

DeckWords words_of(MPI_Comm world, int rank, const std::string& path, const std::vector<std::string>& overrides) {
  int64_t found[3] = {0, -1, 0};
  collectively(world, [&] {
    if (rank != 0) return;
    std::vector<std::string> told_later;  // by make_plan, together with what it finds itself
    const Deck deck = Deck::parse(Deck::read_text(path), path, overrides, {}, told_later);
    const std::string& schedule = deck[keys::pipeline::schedule];
    found[0] = schedule != "1f1b" && schedule != "gpipe";
    if (deck.has(keys::pipeline::stage_layers)) {
      const auto& blocks = deck[keys::pipeline::stage_layers];
      found[1] = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
    }
    const std::string& family = deck.get_or(keys::model::family, std::string());
    found[2] = family == "mixtral" || family == "deepseek" || deck.get_or(keys::moe::experts, int64_t{0}) > 0;
  });
  ORTHANT_MPI(MPI_Bcast(found, 3, MPI_INT64_T, 0, world));
  return {found[0] ? "interleaved" : "1f1b", found[1], found[2] != 0};
}

/// The gate at work: reference first, then a row of the table for each layout.
class Gate {
 public:
  Gate(MPI_Comm world, const std::string& deck, const std::vector<std::string>& overrides,
       const VerifySettings& settings)
      : world_(world), deck_(deck), overrides_(overrides), settings_(settings) {
    ORTHANT_MPI(MPI_Comm_rank(world, &rank_));
    ORTHANT_MPI(MPI_Comm_size(world, &ranks_));
  }

  int run() {
    named_ = settings_.layouts != "all";
    if (named_) layouts_ = read_layouts(settings_.layouts);
    words_ = words_of(world_, rank_, deck_, overrides_);
    RunPlan one = make_plan(world_, deck_, joined(overrides_, overrides_of_one_rank(words_)), 1);
    if (one.sleep.on)
      throw UsageError(
          "run.timing = \"sleep\": nothing is computed, so there is nothing to compare; verify needs \"real\"", true);
    bound_ = bound_of(one, settings_.bound);
    stream_steps_ = std::max(one.deck[keys::run::steps], settings_.steps);
    if (!named_) list_legal();
    for (const LayoutWords& w : layouts_) width_ = std::max(width_, text_of(w, ranks_).size());
    const std::string name = one.deck.name(), precision = one.deck[keys::precision::compute];
    kept_.emplace(world_, model_params(one.model));

    int fits = 1;
    std::string why_not;
    collectively(world_, [&] {
      if (rank_ == 0) fits = fits_one_rank(one, &why_not);
    });
    ORTHANT_MPI(MPI_Bcast(&fits, 1, MPI_INT, 0, world_));
    say(fmt::format("verify     {}: the first {} steps on {} of {} rank{}, {}{}", name, settings_.steps, count_text(),
                    ranks_, ranks_ == 1 ? "" : "s", precision, one.reproducible ? ", reproducible mode" : ""));
    if (skipped_ > 0)
      say(fmt::format("skipped    {} layout{} that this deck cannot have", skipped_, skipped_ == 1 ? "" : "s"));
    say("bound      " + text_of(bound_));
    if (fits) {
      reference_name_ = "one rank";
      train_one_rank(std::move(one));
    } else {
      say("one rank   " + why_not.substr(0, why_not.find('\n')));
      say("reference  the first layout that runs");
    }
    say(fmt::format("\n{:<{}}  {:>9}  {:>9}  {:>9}  {}", "layout", width_, "loss", "norm", "weights",
                    settings_.repeat ? "repeated   verdict" : "verdict"));
    for (const LayoutWords& w : layouts_) row(w);
    // a gate through which nothing went has let nothing pass
    const bool idle = compared_ == 0;
    if (failed_ > 0)
      say(fmt::format("\nverify: {} of {} failed", failed_, count_text()));
    else if (idle)
      say("\nverify: nothing was compared: one rank has not the memory to be the reference; give two layouts that "
          "run, or --repeat");
    else
      say(fmt::format("\nverify: {} of {} passed{}", passed_, count_text(),
                      passed_ < static_cast<int64_t>(layouts_.size()) ? ", the others could not run" : ""));
    int code = static_cast<int>(failed_ == 0 && !idle ? Exit::done : Exit::check_failed);
    ORTHANT_MPI(MPI_Bcast(&code, 1, MPI_INT, 0, world_));
    return code;
  }

 private:
  std::string count_text() const {
    return fmt::format("{} layout{}", layouts_.size(), layouts_.size() == 1 ? "" : "s");
  }

  void say(const std::string& line) const {
    if (rank_ != 0) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  RunPlan plan_of(const LayoutWords& w) const {
    return make_plan(world_, deck_, joined(overrides_, overrides_of(w, words_)));
  }

  void list_legal() {
    std::string last;
    for (const LayoutWords& w : all_layouts(ranks_, words_.experts)) {
      try {
        plan_of(w);
        layouts_.push_back(w);
      } catch (const Error& e) {
        if (e.code() != Exit::usage || !e.agreed()) throw;
        ++skipped_;
        last = e.what();
      }
    }
    if (layouts_.empty())
      throw UsageError(fmt::format("no layout of {} ranks fits this deck; the last one tried: {}", ranks_, last),
                       true);
  }

  /// Rank 0 alone, on a communicator of itself; its weights are then dealt out, and the memory is free for the
  /// layouts.
  void train_one_rank(RunPlan plan) {
    MPI_Comm alone = MPI_COMM_NULL;
    ORTHANT_MPI(MPI_Comm_split(world_, rank_ == 0 ? 0 : MPI_UNDEFINED, 0, &alone));
    std::unique_ptr<LayoutRun> run;
    std::exception_ptr failure;
    if (rank_ == 0) {
      try {
        run = std::make_unique<LayoutRun>(alone, std::move(plan), settings_.steps, stream_steps_);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    wait_idle(world_);
    collectively(world_, [&] {
      if (failure) std::rethrow_exception(failure);
    });
    Curve curve;
    if (run) curve = run->curve();
    curve.loss.resize(static_cast<size_t>(settings_.steps));
    curve.norm.resize(static_cast<size_t>(settings_.steps));
    ORTHANT_MPI(MPI_Bcast(curve.loss.data(), static_cast<int>(settings_.steps), MPI_DOUBLE, 0, world_));
    ORTHANT_MPI(MPI_Bcast(curve.norm.data(), static_cast<int>(settings_.steps), MPI_DOUBLE, 0, world_));
    kept_->keep(run ? weights_of(kept_->model(), run->state()) : std::map<int64_t, StatePiece>{});
    run.reset();
    if (rank_ == 0) ORTHANT_MPI(MPI_Comm_free(&alone));
    set_reference(curve);
  }

  void set_reference(const Curve& curve) {
    reference_ = curve;
    say(fmt::format("reference  {}: loss {:.6f} to {:.6f}, gradient norm {:.5g} to {:.5g}", reference_name_,
                    curve.loss.front(), curve.loss.back(), curve.norm.front(), curve.norm.back()));
  }

  /// What one layout, its repetition and the comparisons have shown.
  struct Outcome {
    MeshShape mesh;
    bool is_reference = false;
    CurveDifference curve, repeated_curve;
    Curve own;
    WeightDifference weights, replicas, repeated;
  };

  void row(const LayoutWords& w) {
    const std::string name = text_of(w, ranks_);
    std::optional<Outcome> outcome;
    try {
      outcome = measure(w, name);
    } catch (const Error& e) {
      if (e.code() != Exit::usage || !e.agreed()) throw;
      if (named_) ++failed_;
      say(fmt::format("{:<{}}  {:>9}  {:>9}  {:>9}  {}refused\n  {}", name, width_, "-", "-", "-",
                      settings_.repeat ? "-          " : "", indented(e.what())));
      return;
    }
    if (!outcome->is_reference || settings_.repeat) ++compared_;
    const std::string problems = problems_of(*outcome);
    ++(problems.empty() ? passed_ : failed_);
    const std::string repeated = !settings_.repeat                                                    ? ""
                                 : outcome->repeated_curve.same_bits && outcome->repeated.same_bits() ? "same bits  "
                                                                                                      : "differs    ";
    say(fmt::format("{:<{}}  {:>9}  {:>9}  {:>9}  {}{}{}", name, width_, short_text(outcome->curve.loss),
                    short_text(outcome->curve.norm), short_text(outcome->weights.largest), repeated,
                    problems.empty() ? outcome->is_reference ? "reference" : "pass" : "FAIL", problems));
  }

  Outcome measure(const LayoutWords& w, const std::string& name) {
    Outcome out;
    std::map<int64_t, std::vector<float>> first_weights;
    {
      const LayoutRun run(world_, plan_of(w), settings_.steps, stream_steps_);
      const auto mine = weights_of(kept_->model(), run.state());
      out.mesh = run.plan().mesh;
      out.own = run.curve();
      if (!reference_) {
        out.is_reference = true;
        reference_name_ = name;
        kept_->keep(mine);
        set_reference(run.curve());
      }
      out.curve = compare_curves(run.curve(), *reference_, bound_);
      out.weights = kept_->compare(run.mesh().rank(), mine, bound_.bits ? 0 : share_of_reach * run.reach());
      out.replicas = kept_->compare_replicas(run.mesh().rank(), mine);
      if (settings_.repeat) first_weights = copy_of(mine);
    }
    if (!settings_.repeat) return out;
    const LayoutRun again(world_, plan_of(w), settings_.steps, stream_steps_);
    out.repeated_curve = compare_curves(again.curve(), out.own, ParityBound{0, false, 0, true});
    out.repeated = compare_here(
        world_, again.mesh().rank(), weights_of(kept_->model(), again.state()),
        [&](int64_t t) { return first_weights.at(t).data(); }, 0);
    return out;
  }

  std::string place_text(const WeightPlace& p, const MeshShape& mesh, const std::string& other) const {
    const Param& param = kept_->model()[static_cast<size_t>(p.tensor)];
    const Coordinates at = coordinates_of(mesh, p.rank);
    const std::string element =
        param.dims.size() > 1 ? fmt::format("[{}, {}]", p.row, p.col) : fmt::format("[{}]", p.row);
    return fmt::format("{} {} on rank {} (tp {}, cp {}, pp {}, dp {}): {:.9g} against {:.9g} {}", param.name, element,
                       p.rank, at.tp, at.cp, at.pp, at.dp, p.value, p.reference, other);
  }

  /// A line for each way in which the layout failed; empty: it passed.
  std::string problems_of(const Outcome& o) const {
    std::string out;
    const auto step_text = [&](const Curve& a, const Curve& b, int64_t step) {
      const auto i = static_cast<size_t>(step - 1);
      return fmt::format("step {}: loss {:.17g} against {:.17g}, gradient norm {:.17g} against {:.17g}", step,
                         a.loss[i], b.loss[i], a.norm[i], b.norm[i]);
    };
    if (o.curve.past > 0) out += "\n  past the bound from " + step_text(o.own, *reference_, o.curve.past);
    if (o.curve.past > 0 || (bound_.bits && !o.weights.same_bits())) {
      // the steps before the bound was passed have trained on; the first tensor says where to begin to look
      const WeightPlace& first = o.weights.first_past.tensor >= 0 ? o.weights.first_past : o.weights.first;
      if (first.tensor < 0)
        out += "\n  all weights have the same bits";
      else {
        out += "\n  first tensor that differs: " + place_text(first, o.mesh, "(" + reference_name_ + ")");
        if (o.weights.worst.tensor != first.tensor)
          out += "\n  largest difference: " + place_text(o.weights.worst, o.mesh, "(" + reference_name_ + ")");
      }
    }
    if (!o.replicas.same_bits())
      out += "\n  replicas of a weight have drifted apart: " +
             place_text(o.replicas.first, o.mesh, "in the copy that is saved");
    if (settings_.repeat && o.repeated_curve.past > 0)
      out +=
          fmt::format("\n  the repetition has another loss or gradient norm from step {} on", o.repeated_curve.past);
    if (settings_.repeat && !o.repeated.same_bits())
      out += "\n  first tensor that differs in the repetition: " +
             place_text(o.repeated.first, o.mesh, "in the first run");
    return out;
  }

  MPI_Comm world_;
  const std::string& deck_;
  const std::vector<std::string>& overrides_;
  const VerifySettings& settings_;
  int rank_ = 0, ranks_ = 1;
  bool named_ = false;
  DeckWords words_;
  ParityBound bound_;
  int64_t stream_steps_ = 0;
  std::vector<LayoutWords> layouts_;
  std::size_t width_ = 6;
  std::optional<KeptWeights> kept_;
  std::optional<Curve> reference_;
  std::string reference_name_;
  int64_t skipped_ = 0, failed_ = 0, passed_ = 0, compared_ = 0;
};

}  // namespace

ParityBound bound_of(const RunPlan& plan, const std::optional<double>& given) {
  ParityBound b;
  if (plan.precision.has_copy()) b = {0.02, true, infinite, false};
  if (given) {
    if (std::isfinite(b.norm)) b.norm *= *given / b.loss;
    b.loss = *given;
  }
  if (given ? *given == 0 : plan.reproducible) b = {0, false, 0, true};
  return b;
}

std::string text_of(const ParityBound& b) {
  if (b.bits) return "the same bits in losses, gradient norms and weights";
  return fmt::format("{:g}{} in loss, {} in gradient norm", b.loss, b.loss_relative ? " relative" : "",
                     std::isfinite(b.norm) ? fmt::format("{:g} relative", b.norm) : "any");
}

CurveDifference compare_curves(const Curve& curve, const Curve& reference, const ParityBound& bound) {
  ORTHANT_ENSURE(curve.loss.size() == reference.loss.size() && curve.norm.size() == reference.norm.size() &&
                     curve.loss.size() == curve.norm.size(),
                 "curves of unequal length");
  CurveDifference out;
  const auto apart = [](double a, double b, bool relative) {
    if (!std::isfinite(a) || !std::isfinite(b)) return infinite;
    if (a == b) return 0.0;
    return std::fabs(a - b) / (relative ? std::fabs(b) : 1);
  };
  for (size_t i = 0; i < curve.loss.size(); ++i) {
    const double loss = apart(curve.loss[i], reference.loss[i], bound.loss_relative),
                 norm = apart(curve.norm[i], reference.norm[i], true);
    out.loss = std::max(out.loss, loss);
    out.norm = std::max(out.norm, norm);
    // a norm of any size is allowed where the bound is infinite, one that is no number is not
    const bool within = loss <= bound.loss && norm <= bound.norm && std::isfinite(norm);
    if (!within && out.past == 0) out.past = static_cast<int64_t>(i) + 1;
    out.same_bits = out.same_bits && loss == 0 && norm == 0;
  }
  return out;
}

int verify(MPI_Comm world, const std::string& deck, const std::vector<std::string>& overrides,
           const VerifySettings& settings) {
  return Gate(world, deck, overrides, settings).run();
}

}  // namespace orthant
