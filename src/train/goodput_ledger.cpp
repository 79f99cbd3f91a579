// See goodput_ledger.hpp.
#include "train/goodput_ledger.hpp"

#include <algorithm>

#include "orthant/error.hpp"

namespace orthant {

const char* name_of(StopKind kind) {
  const char* names[stop_kinds] = {"planned", "node", "rank", "hang", "io", "numerics", "refused", "other"};
  return names[static_cast<int>(kind)];
}

double TimeBins::effective() const {
  const double all = total() - idle;
  return all > 0 ? trained / all : 1;
}

StopKind kind_of_end(int code, const std::string& reason) {
  switch (static_cast<Exit>(code)) {
    case Exit::stopped: return StopKind::planned;
    case Exit::usage: return StopKind::refused;
    case Exit::data: return StopKind::io;
    case Exit::diverged: return StopKind::numerics;
    case Exit::fault:
      if (reason.rfind("hang", 0) == 0) return StopKind::hang;  // the watchdog's first word
      return reason.find("copies of the same numbers differ") != std::string::npos ? StopKind::numerics : StopKind::other;
    default: return StopKind::other;
  }
}

void GoodputLedger::apply(const GoodputEvent& e) {
  switch (e.kind) {
    case GoodputEvent::Kind::begin: return begin(e);
    case GoodputEvent::Kind::ready: return ready(e);
    case GoodputEvent::Kind::rollback: return rollback(e);
    case GoodputEvent::Kind::end:
    case GoodputEvent::Kind::killed: return end(e);
    case GoodputEvent::Kind::save:
      elapse(e.t, e.waited);
      if (phase_ != Phase::training) return;
      count(e);
      push(e.step);
  }
}

/// The time since the last event goes into the bin of the phase; a clock that went back does not count.
void GoodputLedger::elapse(double t, double waited) {
  const double dt = std::max(0.0, t - last_);
  switch (phase_) {
    case Phase::none: first_ = last_ = t; return;
    case Phase::starting: (trained_once_ ? bins_.restart : bins_.start) += dt; break;
    case Phase::ended: bins_.gap += dt; break;
    case Phase::finished: bins_.idle += dt; break;
    case Phase::training: {
      const double wait = std::clamp(waited - waited_, 0.0, dt);
      waited_ += wait;
      bins_.saving += wait;
      bins_.trained += dt - wait;
    }
  }
  last_ += dt;
}

TimeBins GoodputLedger::bins(double t, double waited) const {
  TimeBins out = bins_;
  const double dt = std::max(0.0, t - last_);
  switch (phase_) {
    case Phase::none: break;
    case Phase::starting: (trained_once_ ? out.restart : out.start) += dt; break;
    case Phase::ended: out.gap += dt; break;
    case Phase::finished: out.idle += dt; break;
    case Phase::training: {
      const double wait = std::clamp(waited - waited_, 0.0, dt);
      out.saving += wait;
      out.trained += dt - wait;
    }
  }
  return out;
}

double GoodputLedger::node_seconds(const TimeBins& bins) const {
  return node_seconds_ + (bins.held() - held_before_) * static_cast<double>(nodes_);
}

void GoodputLedger::begin(const GoodputEvent& e) {
  if (phase_ == Phase::starting || phase_ == Phase::training) {  // its end is missing: the line was torn
    GoodputEvent lost_end;
    lost_end.kind = GoodputEvent::Kind::killed;
    lost_end.t = lost_end.sign = last_;
    lost_end.step = step_;
    lost_end.waited = waited_;
    lost_end.reason = "its end is not on record";
    end(lost_end);
  }
  const double before = last_;
  elapse(e.t, 0);
  if (phase_ == Phase::ended && !stops_.empty()) stops_.back().gap += last_ - before;
  node_seconds_ = node_seconds(bins_);
  held_before_ = bins_.held();
  phase_ = Phase::starting;
  ++lives_;
  life_ = e.life;
  nodes_ = std::max<int64_t>(1, e.nodes);
  life_begin_ = last_;
  waited_ = life_stall_ = life_durable_ = 0;
  life_saves_ = life_durables_ = 0;
}

void GoodputLedger::ready(const GoodputEvent& e) {
  if (phase_ != Phase::starting) {  // its begin is missing
    GoodputEvent lost_begin = e;
    lost_begin.life = life_ + 1;
    lost_begin.nodes = nodes_;
    begin(lost_begin);
  }
  elapse(e.t, 0);
  const double before = bins_.lost, load = std::min(e.load, last_ - life_begin_);
  if (!trained_once_) base_ = step_ = e.step;
  go_back(e.step);
  // what came last stopped the run, also where it stopped it for the second time
  if (!stops_.empty() && !stops_.back().over) {
    Stop& s = stops_.back();
    s.start += last_ - life_begin_ - load;
    s.load += load;
    s.lost += bins_.lost - before;
    for (Stop& each : stops_) each.over = true;
  }
  phase_ = Phase::training;
  trained_once_ = true;
  restored_ = e.step;
}

void GoodputLedger::rollback(const GoodputEvent& e) {
  if (phase_ != Phase::training) return elapse(e.t, e.waited);
  elapse(std::min(e.t, std::max(last_, e.t - e.load)), e.waited);
  Stop s;
  s.kind = StopKind::numerics;
  s.life = life_;
  s.step = step_;
  s.reason = e.reason;
  s.over = true;
  s.load = std::max(0.0, e.t - last_);
  bins_.restart += s.load;
  last_ += s.load;
  s.t = last_;
  const double before = bins_.lost;
  go_back(e.step);
  s.lost = bins_.lost - before;
  count(e);
  stops_.push_back(std::move(s));
}

void GoodputLedger::end(const GoodputEvent& e) {
  double detection = 0;
  if (phase_ == Phase::starting) {
    // a start that came to nothing is part of the recovery from the stop before it
    const double before = last_;
    elapse(e.t, 0);
    if (!stops_.empty() && !stops_.back().over) stops_.back().start += last_ - before;
  } else {
    elapse(std::min(e.t, e.sign), e.waited);
    if (phase_ != Phase::training) return elapse(e.t, 0);  // a second end of one life
    step_ = std::max(step_, e.step);
    count(e);
    detection = std::max(0.0, e.t - last_);
    bins_.detection += detection;
    last_ += detection;
  }
  if (e.kind == GoodputEvent::Kind::end && e.code == 0 && e.state == "finished") {
    phase_ = Phase::finished;
    return;
  }
  phase_ = Phase::ended;
  Stop s;
  s.kind = e.kind == GoodputEvent::Kind::killed ? e.stop : kind_of_end(e.code, e.reason);
  s.t = last_;
  s.life = life_;
  s.step = step_;
  s.reason = e.reason;
  s.detection = detection;
  stops_.push_back(std::move(s));
}

/// Sums over all lives from those of this life.
void GoodputLedger::count(const GoodputEvent& e) {
  saves_ += std::max<int64_t>(0, e.saves - life_saves_);
  durables_ += std::max<int64_t>(0, e.durables - life_durables_);
  stall_ += std::max(0.0, e.stall - life_stall_);
  durable_ += std::max(0.0, e.durable - life_durable_);
  life_saves_ = std::max(life_saves_, e.saves);
  life_durables_ = std::max(life_durables_, e.durables);
  life_stall_ = std::max(life_stall_, e.stall);
  life_durable_ = std::max(life_durable_, e.durable);
}

/// Trained seconds when the run stood at `step`; between known places in proportion to the steps.
double GoodputLedger::trained_at(int64_t step) const {
  for (auto p = places_.rbegin(); p != places_.rend() && p->step >= step; ++p)
    if (p->step == step) return p->trained;
  if (places_.empty() || step >= step_) return bins_.trained;
  const auto above = std::find_if(places_.begin(), places_.end(), [&](const Place& p) { return p.step > step; });
  if (above == places_.begin()) return std::min(above->trained, bins_.trained);
  const Place low = *(above - 1), high = above == places_.end() ? Place{step_, bins_.trained} : *above;
  const double part = static_cast<double>(step - low.step) / static_cast<double>(high.step - low.step);
  return low.trained + part * (high.trained - low.trained);
}

/// What was trained behind `step` is lost.
double GoodputLedger::go_back(int64_t step) {
  const double kept = trained_at(step), lost = bins_.trained - kept;
  bins_.trained = kept;
  bins_.lost += lost;
  while (!places_.empty() && places_.back().step > step) places_.pop_back();
  if (step > step_) base_ += step - step_;  // a checkpoint from elsewhere: its steps were not trained here
  base_ = std::min(base_, step);
  step_ = step;
  push(step);
  return lost;
}

void GoodputLedger::push(int64_t step) {
  const size_t most = 4096;  // a run goes back to one of its last checkpoints; older places are thinned out
  step_ = std::max(step_, step);
  if (!places_.empty() && places_.back().step == step) places_.back().trained = bins_.trained;
  else places_.push_back({step, bins_.trained});
  if (places_.size() > most) places_.erase(places_.begin() + 1, places_.begin() + most / 2);
}

}  // namespace orthant
