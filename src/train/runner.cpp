// See runner.hpp.
#include "train/runner.hpp"

#include <fmt/format.h>

#include "support/work_clock.hpp"

namespace orthant {

namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

bool Runner::takes_input(const Action& a, Key& key) const {
  const int64_t vs = virtual_stage(a.chunk);
  key = {vs, a.micro, a.act == Act::B};
  if (a.act == Act::F) return a.unit == 0 && vs > 0;
  return a.act == Act::B && a.unit == units(a.chunk) - 1 && vs < s_.plan.pipeline.virtual_stages() - 1;
}

/// Messages in flight at once have different tags; the transport folds them into what MPI offers.
int Runner::tag(const Key& k) const {
  return static_cast<int>(((k.micro * s_.plan.pipeline.virtual_stages() + k.virtual_stage) * 2 + k.backward) % 32000);
}

void Runner::post_next_receive(const ActionList& list) {
  const Pipeline& p = s_.plan.pipeline;
  Key key;
  for (; next_receive_ < list.size(); ++next_receive_) {
    if (!takes_input(list[next_receive_], key)) continue;
    const int64_t from = p.stage_of(key.virtual_stage + (key.backward ? 1 : -1));
    if (from == s_.layout.at().pp) continue;  // handed over
    Input in;
    in.x = s_.ctx.activation(s_.plan.shard_tokens(), s_.plan.model.hidden);
    in.pending = s_.ctx.axes[AxisName::pp].receive(in.x, static_cast<int>(from), tag(key), key.backward ? "gradient of a stage's output" : "a stage's input");
    in.message = true;
    inputs_.emplace(key, std::move(in));
    ++next_receive_;
    return;
  }
}

Tensor Runner::take_input(const Key& key, const ActionList& list) {
  auto found = inputs_.find(key);
  ORTHANT_ENSURE(found != inputs_.end(), "an action of the schedule stands before its input");
  Input in = std::move(found->second);
  inputs_.erase(found);
  if (in.message) post_next_receive(list);  // else the next one is posted already
  Timed timed(timers_, "pipeline wait");
  in.pending.wait();
  return in.x;
}

void Runner::give(const Key& to, const Tensor& x) {
  const int64_t stage = s_.plan.pipeline.stage_of(to.virtual_stage);
  if (stage == s_.layout.at().pp) {
    inputs_[to].x = x;
    return;
  }
  sends_.push_back(s_.ctx.axes[AxisName::pp].send(x, static_cast<int>(stage), tag(to), to.backward ? "gradient of a stage's input" : "a stage's output"));
}

void Runner::open_gradients(const Unit& unit) {
  for (LocalParam* p : unit.params()) s_.store->open_gradients(p->unit);
}

template <class Work>
void Runner::work(const Action& a, const char* phase, Work&& run) {
  Timed timed(timers_, phase);
  if (timers_.trace) timed.detail(fmt::format("\"chunk\": {}, \"unit\": {}, \"micro\": {}", a.chunk, a.unit, a.micro));
  if (s_.clock) play(a, run);
  else run();
  busy_ += timed.seconds();
}

void Runner::play(const Action& a, const std::function<void()>& run) {
  WorkClock& clock = *s_.clock;
  const double seconds = s_.sleep_seconds(a), before = clock.flops();
  const int64_t begin = clock.ready();
  Session::Played& known = s_.played[{a.act, a.chunk, a.unit}];
  // products share the action's time by their size; an action without any (an embedding) takes it in one piece
  clock.rate(known.flops > 0 ? seconds / known.flops : 0);
  run();
  if (known.flops <= 0) clock.put(seconds);
  clock.rate(0);
  known = {clock.flops() - before, static_cast<double>(clock.ready() - begin) * 1e-9};
  clock.catch_up();
}

void Runner::forward(const Action& a, const ActionList& list, bool train) {
  const auto slot = std::pair(a.chunk, a.micro);
  const Unit& u = unit(a);
  Key key;
  Tensor x = takes_input(a, key) ? take_input(key, list) : a.unit == 0 ? Tensor() : flowing_[slot];
  sharding_.need();
  if (train && u.gradient_in_forward()) open_gradients(u);
  auto& stash = stash_[slot];
  stash.resize(static_cast<size_t>(units(a.chunk)));
  Tensor y;
  work(a, "forward", [&] { y = u.forward(s_.ctx, x, train, stash[static_cast<size_t>(a.unit)], losses_[static_cast<size_t>(a.micro)]); });
  sharding_.release(s_.uses(a.chunk).last[static_cast<size_t>(a.unit)]);
  const bool last = a.unit == units(a.chunk) - 1;
  flowing_[slot] = last ? Tensor() : y;
  const int64_t vs = virtual_stage(a.chunk);
  if (last && vs < s_.plan.pipeline.virtual_stages() - 1) give({vs + 1, a.micro, false}, y);
}

void Runner::backward(const Action& a, const ActionList& list) {
  const auto slot = std::pair(a.chunk, a.micro);
  const Unit& u = unit(a);
  Key key;
  Tensor dy = takes_input(a, key) ? take_input(key, list) : flowing_[slot];
  sharding_.need();
  open_gradients(u);
  Tensor dx;
  work(a, "backward", [&] { dx = u.backward(s_.ctx, dy, stash_[slot][static_cast<size_t>(a.unit)]); });
  if (s_.plan.pipeline.split) deferred_[slot][a.unit] = s_.ctx.take_deferred();
  sharding_.release(s_.uses(a.chunk).first[static_cast<size_t>(a.unit)]);
  flowing_[slot] = a.unit == 0 ? Tensor() : dx;
  const int64_t vs = virtual_stage(a.chunk);
  if (a.unit == 0 && vs > 0) give({vs - 1, a.micro, true}, dx);
}

void Runner::weights(const Action& a) {
  open_gradients(unit(a));
  auto& pending = deferred_[{a.chunk, a.micro}];
  auto tasks = std::move(pending[a.unit]);
  pending.erase(a.unit);
  work(a, "weight gradients", [&] {
    for (auto& task : tasks) {
      task();
      task = nullptr;  // what it captured goes at once
    }
  });
}

std::vector<LossSum> Runner::run(const ActionList& list, const MakeBatch& micro_batch, bool train) {
  Context& ctx = s_.ctx;
  losses_.assign(static_cast<size_t>(s_.plan.micros()), {});
  std::map<int64_t, int64_t> uses;  // of a micro-batch's tokens
  for (const Action& a : list)
    if (a.act != Act::G && a.act != Act::R) ++uses[a.micro];
  ctx.keep_deferred = train && s_.plan.pipeline.split;
  ctx.dropout = train ? s_.plan.model.dropout : 0;
  ctx.router_stats = s_.router_stats.get();
  next_receive_ = 0;
  busy_ = 0;
  const auto begin = Clock::now();
  post_next_receive(list);
  for (const Action& a : list) {
    if (a.act == Act::R) {
      Timed timed(timers_, "gradient sums");
      sharding_.sum(s_.unit_offset(a.chunk) + a.unit, a.units);
      continue;
    }
    if (a.act == Act::G) {
      const auto& use = s_.uses(a.chunk);
      sharding_.gather((a.backward ? use.last : use.first)[static_cast<size_t>(a.unit)]);
      continue;
    }
    if (!batch_.count(a.micro)) batch_[a.micro] = micro_batch(a.micro);
    ctx.batch = &batch_[a.micro];
    if (a.act == Act::F) forward(a, list, train);
    else if (a.act == Act::B) backward(a, list);
    else weights(a);
    if (--uses[a.micro] == 0) batch_.erase(a.micro);
    while (!sends_.empty() && sends_.front().done()) sends_.pop_front();
  }
  ctx.batch = nullptr;
  ctx.keep_deferred = false;
  ctx.dropout = 0;
  ctx.router_stats = nullptr;
  {
    Timed timed(timers_, "pipeline wait");
    while (!sends_.empty()) sends_.pop_front();
  }
  ctx.be.synchronize();
  span_ = std::chrono::duration<double>(Clock::now() - begin).count();
  flowing_.clear();
  stash_.clear();
  deferred_.clear();
  ORTHANT_ENSURE(inputs_.empty(), "an input of the pipeline was never used");
  return std::move(losses_);
}

}  // namespace orthant
