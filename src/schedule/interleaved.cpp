// Interleaved 1F1B (Narayanan et al. 2021): a stage holds v chunks, placed in loops over the stages, and takes its
// micro-batches in groups of p: the group through chunk 0, then the group through chunk 1, and so on. The bubble is a
// v-th of 1F1B's, (p - 1) / (v m + p - 1), for at most p v + p - 1 chunks kept.
//
// The order is deadlock-free when the groups are full. Any other number of micro-batches is played as if the last
// group were full and the surplus is struck out: what remains keeps its order and waits for nothing new, so that it
// cannot deadlock either (a short last group in its own right could, since a stage would need its output back too
// early).
#include <algorithm>

#include "orthant/schedule.hpp"

namespace orthant {

namespace {

ActionList interleaved(const ScheduleShape& shape, int64_t stage) {
  const int64_t p = shape.stages, v = shape.chunks, groups = (shape.micros + p - 1) / p, total = groups * p * v;
  // The k-th forward or backward of every stage: backward takes the chunks from the last to the first.
  const auto nth = [&](Act act, int64_t k) {
    const int64_t group = k / (p * v), chunk = k % (p * v) / p;
    return Action{act, act == Act::F ? chunk : v - 1 - chunk, group * p + k % p};
  };
  ActionList out;
  const auto put = [&](const Action& a) {
    if (a.micro < shape.micros) out.push_back(a);
  };
  // Forwards before the first backward: until micro-batch 0 reaches the last chunk, and two more for each stage
  // below, one for the way there and one for the way back. One chunk needs only the way there, as in 1F1B.
  const int64_t warm = v == 1 ? p - 1 - stage : std::min(total, (v - 1) * p + 2 * (p - 1 - stage));
  int64_t forward = 0, backward = 0;
  while (forward < warm) put(nth(Act::F, forward++));
  while (forward < total) {
    put(nth(Act::F, forward++));
    put(nth(Act::B, backward++));
  }
  while (backward < total) put(nth(Act::B, backward++));
  return out;
}

}  // namespace

Schedule interleaved_schedule() {
  return {"interleaved", true, [](Pipeline& out) {
            for (int64_t stage = 0; stage < out.shape.stages; ++stage)
              out.lists.push_back(interleaved(out.shape, stage));
          }};
}

}  // namespace orthant
