// GPipe (Huang et al. 2019): all forwards, then all backwards; keeps every micro-batch.
#include "orthant/schedule.hpp"

namespace orthant {

Schedule gpipe_schedule() {
  return {"gpipe", [](const ScheduleShape& s, int64_t) {
            ActionList out;
            for (int64_t m = 0; m < s.micros; ++m) out.push_back({Act::F, 0, m});
            for (int64_t m = 0; m < s.micros; ++m) out.push_back({Act::B, 0, m});
            out.push_back({Act::R, 0, 0});
            return out;
          }};
}

}  // namespace orthant
