// See step_timeline.hpp.
#include "train/step_timeline.hpp"

namespace orthant {

Timeline step_timeline(const RunPlan& plan, bool gathers_cost) {
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<ActionList> lists;
  for (int64_t s = 0; s < plan.mesh.pp; ++s) {
    sessions.push_back(std::make_unique<Session>(plan, Coordinates{0, 0, s, 0}, true));
    lists.push_back(sessions.back()->actions);
  }
  const double n = static_cast<double>(plan.mesh.shard_size()), wire = plan.sleep.seconds_per_byte * (n - 1) / n;
  auto seconds = [&](int64_t stage, const Action& a) {
    Session& s = *sessions[static_cast<size_t>(stage)];
    if (a.act == Act::G) {
      double bytes = 0;
      const auto& use = s.uses(a.chunk);
      for (const LocalParam* p : (a.backward ? use.last : use.first)[static_cast<size_t>(a.unit)])
        bytes += static_cast<double>(p->rows() * p->cols() * size_of(plan.precision.compute));
      return gathers_cost ? bytes * wire : 0.0;
    }
    if (a.act == Act::R) {
      double elements = 0;
      for (int64_t u = 0; u < a.units; ++u) elements += static_cast<double>(s.store->units()[static_cast<size_t>(s.unit_offset(a.chunk) + a.unit + u)].elements);
      const double bytes = elements * static_cast<double>(plan.reproducible ? 16 : size_of(plan.precision.accumulate()));
      return bytes * wire * (plan.zero.cuts_state() ? 1 : 2);
    }
    return s.sleep_seconds(a);
  };
  const double message = static_cast<double>(plan.shard_tokens() * plan.model.hidden * size_of(plan.precision.compute)) * plan.sleep.seconds_per_byte;
  return play_units(plan.pipeline, lists, seconds, message);
}

}  // namespace orthant
