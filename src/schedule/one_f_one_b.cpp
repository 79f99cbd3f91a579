// 1F1B (Narayanan et al. 2019, PipeDream-Flush): stage r first runs min(m, p - 1 - r) forwards, then one forward and one
// backward in turn; keeps at most min(m, p - r) micro-batches.
#include <algorithm>

#include "orthant/schedule.hpp"

namespace orthant {

Schedule one_f_one_b_schedule() {
  return {"1f1b", [](const ScheduleShape& s, int64_t stage) {
            ActionList out;
            int64_t warm = std::min(s.micros, s.stages - 1 - stage), forward = 0, backward = 0;
            while (forward < warm) out.push_back({Act::F, 0, forward++});
            while (forward < s.micros) {
              out.push_back({Act::F, 0, forward++});
              out.push_back({Act::B, 0, backward++});
            }
            while (backward < s.micros) out.push_back({Act::B, 0, backward++});
            out.push_back({Act::R, 0, 0});
            return out;
          }};
}

}  // namespace orthant
