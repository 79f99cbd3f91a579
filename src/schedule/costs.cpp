// What an action of a whole chunk costs when nothing is measured.
#include "orthant/schedule.hpp"

namespace orthant {

ScheduleCosts schedule_costs(const Pipeline& p) {
  const double share = 1.0 / static_cast<double>(p.shape.chunks);
  ScheduleCosts costs;
  costs.forward = share;
  costs.backward = p.split ? share : 2 * share;
  costs.weight = share;
  return costs;
}

}  // namespace orthant
