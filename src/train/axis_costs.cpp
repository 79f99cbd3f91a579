// See axis_costs.hpp.
#include "train/axis_costs.hpp"

#include <fmt/format.h>

#include "train/step_timeline.hpp"

namespace orthant {

AxisName public_axis(AxisName name) {
  switch (name) {
    case AxisName::tp_rep: return AxisName::tp;
    case AxisName::tie: return AxisName::pp;
    case AxisName::shard: case AxisName::replica: case AxisName::edp_shard: case AxisName::edp_replica: return AxisName::dp;
    default: return name;
  }
}

void AxisCosts::step(const std::vector<Axis>& axes) {
  auto& into = steps_++ == 0 ? first_ : sum_;
  for (const Axis& a : axes) {
    Axis& s = into[a.name];
    s.name = a.name;
    s.exposed += a.exposed;
    s.under_way += a.under_way;
  }
}

std::string AxisCosts::text(const RunPlan& plan) const {
  const int64_t chunks = plan.deck[keys::comm::chunks];
  if (steps_ == 0 || (!plan.sleep.on && chunks == 1)) return "";
  const auto& sums = steps_ == 1 ? first_ : sum_;
  const double steps = static_cast<double>(std::max<int64_t>(1, steps_ - 1));
  std::vector<PlayedStep::Axis> planned;
  if (plan.sleep.on) planned = played_step(plan).axes;
  std::string out;
  for (const auto& [name, a] : sums) {
    out += fmt::format("{}{} {:.2f} ms a step in sight, {:.2f} ms under way", out.empty() ? "waits     " : "\n          ", name_of(name), 1e3 * a.exposed / steps, 1e3 * a.under_way / steps);
    for (const auto& p : planned)
      if (p.name == name) out += fmt::format("; by plan {:.2f} ms in sight, {:.2f} ms on the wire", 1e3 * p.exposed, 1e3 * p.wire);
    if (name == AxisName::tp && chunks > 1) out += fmt::format("; of a product's collective at least 1/{} stays in sight (comm.chunks)", chunks);
  }
  return out;
}

}  // namespace orthant
