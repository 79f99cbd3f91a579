// The list of schedules.
#include "orthant/error.hpp"
#include "orthant/schedule.hpp"

namespace orthant {

const Schedule& schedule(const std::string& name) {
  static const std::vector<Schedule> all = {one_f_one_b_schedule(), gpipe_schedule()};
  for (const Schedule& s : all)
    if (s.name == name) return s;
  throw UsageError("pipeline.schedule = \"" + name + "\": this build has 1f1b and gpipe", true);
}

}  // namespace orthant
