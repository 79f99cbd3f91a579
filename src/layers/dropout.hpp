// Dropout of activations: which elements go is a function of seed, site, step and place (src/README.md, number 2), so
// that recompute repeats it and no mesh changes it.
#pragma once

#include <string>

#include "orthant/context.hpp"

namespace orthant {

/// Settings of the site called `site` (a parameter-like name) for the tokens `places`; rate 0 outside training.
Dropout dropout_at(const Context& ctx, const std::string& site, const Tensor& places);
/// x [tokens of the shard, hidden] with elements dropped, x itself when nothing is. Backward is the same call on dy.
Tensor drop_hidden(Context& ctx, const Tensor& x, const std::string& site);

}  // namespace orthant
