// A limit on the picks that an expert accepts of a sequence (model.moe.capacity_factor): earlier positions first,
// whatever ranks hold them, so that no mesh changes what is dropped.
#pragma once

#include "orthant/context.hpp"

namespace orthant {

/// chosen i32 [tokens of the shard, top_k] -> the same with -1 for each pick beyond the capacity; `dropped` += how
/// many. A token whose picks are all dropped passes through the residual alone. Collective over tp (where it cuts the
/// tokens) and cp; control numbers only.
Tensor drop_over_capacity(Context& ctx, const Tensor& chosen, int64_t experts, double factor, int64_t& dropped);

}  // namespace orthant
