// Zero bubble (Qi et al. 2023, "Zero Bubble Pipeline Parallelism"; its V form: Qi et al. 2024, "Pipeline Parallelism
// with Controllable Memory"): the weight gradients W stand apart from B, so that the stage before gets its gradient
// sooner and W fills time in which a stage would wait. What a micro-batch keeps is released after W.
//
// One chunk (ZB-H1) holds back r of stage r's W, so that each stage keeps min(m, p) micro-batches, as much as stage 0
// of 1F1B does, and has W left for the time in which it would wait: a bubble of (p - 1)(F + B - W) against
// (p - 1)(F + B + W) once m >= p.
//
// Two chunks, placed in a V, keep at most p micro-batches of a whole stage, as much as stage 0 of 1F1B, on all stages
// alike. With F = B = W and m >= 2 p no stage waits after its first action: the bubble is the way there, p - 1
// forwards of one chunk.
#include <algorithm>

#include "orthant/schedule.hpp"

namespace orthant {

namespace {

ActionList one_chunk(const ScheduleShape& shape, int64_t stage) {
  ActionList out;
  const int64_t warm = std::min(shape.micros, shape.stages - 1 - stage);
  for (int64_t m = 0; m < warm; ++m) out.push_back({Act::F, 0, m});
  for (int64_t m = 0; m < shape.micros; ++m) {
    if (warm + m < shape.micros) out.push_back({Act::F, 0, warm + m});
    out.push_back({Act::B, 0, m});
    if (m >= stage) out.push_back({Act::W, 0, m - stage});
  }
  for (int64_t m = std::max<int64_t>(0, shape.micros - stage); m < shape.micros; ++m) out.push_back({Act::W, 0, m});
  return out;
}

/// Puts the actions of a stage in the V form one after the other, each kind counting its own micro-batches. The
/// phases below are laid out for at least 2 p micro-batches; with fewer the surplus is struck out, which deadlocks
/// nothing.
class VeeStage {
 public:
  explicit VeeStage(int64_t micros) : micros_(micros) {}
  void put(Act act, int64_t chunk) {
    int64_t& micro = (act == Act::F ? forward_ : act == Act::B ? backward_ : weight_)[chunk];
    if (micro < micros_) list_.push_back({act, chunk, micro});
    ++micro;
  }
  /// Whether a B still lacks its W (surplus micro-batches never do).
  bool pending(int64_t chunk) const { return weight_[chunk] < std::min(backward_[chunk], micros_); }
  ActionList take() { return std::move(list_); }

 private:
  int64_t micros_;
  int64_t forward_[2] = {}, backward_[2] = {}, weight_[2] = {};
  ActionList list_;
};

ActionList vee(const ScheduleShape& shape, int64_t r) {
  const int64_t p = shape.stages, laid_out = std::max(shape.micros, 2 * p);
  VeeStage stage(shape.micros);
  // Until micro-batch 0 is back up the V at this stage: 2 (p - r) - 1 actions of its own arm.
  for (int64_t i = 0; i < 2 * (p - r) - 1; ++i) stage.put(Act::F, 0);
  // Until its gradient is here, 2 r actions later: both arms in turn. Now 2 p - 1 chunks are kept.
  for (int64_t i = 0; i < r; ++i) {
    stage.put(Act::F, 1);
    stage.put(Act::F, 0);
  }
  // Room for one more: the arm that comes up runs alone until the gradient has gone down the other.
  for (int64_t i = 0; i < p - r; ++i)
    for (const Act act : {Act::F, Act::B, Act::W}) stage.put(act, 1);
  // One micro-batch in, one out on each arm. Chunk 1 has seen p micro-batches by now.
  for (int64_t i = p; i < laid_out; ++i) {
    for (const int64_t chunk : {0, 1})
      for (const Act act : {Act::F, Act::B, Act::W}) stage.put(act, chunk);
  }
  // The mirror image of the beginning: the gradients first, the weights where a stage would wait.
  for (int64_t i = 0; i < r; ++i) {
    stage.put(Act::B, 0);
    stage.put(Act::B, 1);
  }
  for (int64_t i = 0; i < p - r; ++i) {
    stage.put(Act::B, 0);
    stage.put(Act::W, stage.pending(1) ? 1 : 0);
  }
  for (const int64_t chunk : {1, 0})
    while (stage.pending(chunk)) stage.put(Act::W, chunk);
  return stage.take();
}

}  // namespace

Schedule zero_bubble_schedule() {
  return {"zero_bubble", true, [](Pipeline& out) {
            out.split = true;
            out.vee = out.shape.chunks == 2;
            for (int64_t stage = 0; stage < out.shape.stages; ++stage)
              out.lists.push_back(out.vee ? vee(out.shape, stage) : one_chunk(out.shape, stage));
          }};
}

}  // namespace orthant
