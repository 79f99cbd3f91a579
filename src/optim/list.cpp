// The list of optimisers.
#include "optim/optimizer.hpp"

namespace orthant {

const Optimizer& optimizer(const std::string& name) {
  static const std::vector<Optimizer> all = {adamw_optimizer(), sgd_optimizer()};
  for (const Optimizer& o : all)
    if (o.name == name) return o;
  throw UsageError("optimizer.name = \"" + name + "\": this build has adamw and sgd", true);
}

}  // namespace orthant
