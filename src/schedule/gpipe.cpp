// GPipe (Huang et al. 2019): all forwards, then all backwards; keeps every micro-batch.
#include "orthant/schedule.hpp"

namespace orthant {

Schedule gpipe_schedule() {
  return {"gpipe", false, [](Pipeline& out) {
            for (int64_t stage = 0; stage < out.shape.stages; ++stage) {
              ActionList list;
              for (int64_t m = 0; m < out.shape.micros; ++m) list.push_back({Act::F, 0, m});
              for (int64_t m = 0; m < out.shape.micros; ++m) list.push_back({Act::B, 0, m});
              out.lists.push_back(std::move(list));
            }
          }};
}

}  // namespace orthant
