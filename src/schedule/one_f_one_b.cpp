// 1F1B (Narayanan et al. 2019, PipeDream-Flush): stage r first runs min(m, p - 1 - r) forwards, then one forward and
// one backward in turn; keeps at most min(m, p - r) micro-batches.
#include <algorithm>

#include "orthant/schedule.hpp"

namespace orthant {

namespace {

ActionList one_f_one_b(const ScheduleShape& shape, int64_t stage) {
  ActionList out;
  const int64_t warm = std::min(shape.micros, shape.stages - 1 - stage);
  int64_t forward = 0, backward = 0;
  while (forward < warm) out.push_back({Act::F, 0, forward++});
  while (forward < shape.micros) {
    out.push_back({Act::F, 0, forward++});
    out.push_back({Act::B, 0, backward++});
  }
  while (backward < shape.micros) out.push_back({Act::B, 0, backward++});
  return out;
}

}  // namespace

Schedule one_f_one_b_schedule() {
  return {"1f1b", false, [](Pipeline& out) {
            for (int64_t stage = 0; stage < out.shape.stages; ++stage)
              out.lists.push_back(one_f_one_b(out.shape, stage));
          }};
}

}  // namespace orthant
