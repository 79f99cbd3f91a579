// What a model consists of: the global list of its parameters.
#pragma once

#include <vector>

#include "orthant/model_config.hpp"
#include "orthant/param.hpp"

namespace orthant {

/// All parameters of the model, in the order of the forward pass (tied weights once). Depends on the config alone,
/// never on the mesh.
std::vector<Param> model_params(const ModelConfig& config);

}  // namespace orthant
