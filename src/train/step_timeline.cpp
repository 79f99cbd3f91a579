// See step_timeline.hpp.
#include "train/step_timeline.hpp"

#include "train/axis_costs.hpp"

namespace orthant {

namespace {

int64_t ranks_on(const MeshShape& m, AxisName axis) {
  return axis == AxisName::tp ? m.tp : axis == AxisName::cp ? m.cp : axis == AxisName::pp ? m.pp : axis == AxisName::dp ? m.dp : m.experts > 0 ? m.ep : 1;
}

}  // namespace

PlayedStep played_step(const RunPlan& plan) {
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<ActionList> lists;
  for (int64_t s = 0; s < plan.mesh.pp; ++s) {
    sessions.push_back(Session::play(plan, Coordinates{0, 0, s, 0}));
    lists.push_back(sessions.back()->actions);
  }
  const double n = static_cast<double>(plan.mesh.shard_size()), wire = plan.sleep.seconds_per_byte * (n - 1) / n;
  bool gathers_cost = true;
  const auto seconds = [&](int64_t stage, const Action& a) {
    Session& s = *sessions[static_cast<size_t>(stage)];
    if (a.act == Act::G) {
      if (!gathers_cost) return 0.0;
      double bytes = 0;
      const auto& use = s.uses(a.chunk);
      for (const LocalParam* p : (a.backward ? use.last : use.first)[static_cast<size_t>(a.unit)])
        bytes += static_cast<double>(p->rows() * p->cols() * size_of(plan.precision.compute));
      return bytes * wire;
    }
    if (a.act == Act::R) {
      double elements = 0;
      for (int64_t u = 0; u < a.units; ++u) elements += static_cast<double>(s.store->units()[static_cast<size_t>(s.unit_offset(a.chunk) + a.unit + u)].elements);
      const double bytes = elements * static_cast<double>(plan.reproducible ? 16 : size_of(plan.precision.accumulate()));
      return bytes * wire * (plan.zero.cuts_state() ? 1 : 2);
    }
    return s.played.at({a.act, a.chunk, a.unit}).seconds;
  };
  const double message = static_cast<double>(plan.shard_tokens() * plan.model.hidden * size_of(plan.precision.compute)) * plan.sleep.seconds_per_byte;
  PlayedStep out{play_units(plan.pipeline, lists, seconds, message), {}, 0};
  if (plan.zero.gathers_weights()) {  // the times of the work stay: only the lists are laid out again
    gathers_cost = false;
    out.gathers = out.timeline.length - play_units(plan.pipeline, lists, seconds, message).length;
  }
  for (const AxisName axis : {AxisName::tp, AxisName::cp, AxisName::pp, AxisName::dp, AxisName::ep}) {
    if (ranks_on(plan.mesh, axis) == 1) continue;
    PlayedStep::Axis a{axis, 0, 0};
    for (size_t s = 0; s < sessions.size(); ++s) {
      Traffic& traffic = sessions[s]->axes->traffic();
      for (int i = 0; i < axis_names; ++i)
        if (public_axis(static_cast<AxisName>(i)) == axis && axis != AxisName::pp) a.exposed += traffic.take_seconds(static_cast<AxisName>(i));
      if (axis == AxisName::pp) a.exposed += out.timeline.input_waits[s];
      for (const auto& [key, e] : traffic.entries())  // of two steps
        if (public_axis(key.first) == axis) a.wire += static_cast<double>(e.scaled_bytes) / static_cast<double>(e.ranks) / 2 * plan.sleep.seconds_per_byte;
    }
    a.exposed /= static_cast<double>(sessions.size());
    a.wire /= static_cast<double>(sessions.size());
    out.axes.push_back(a);
  }
  return out;
}

}  // namespace orthant
