// What the receiver of the ranks' parts does with them: in rank order, so that every run gives the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "orthant/tensor.hpp"

namespace orthant {

/// out <- parts[0] + parts[1] + ..., in that order, n elements each; out may be one of the parts. Added in fp32 (fp64
/// for f64, integers for i64) and rounded once. f32, f64, bf16, i64; LogicError for others.
void sum_parts(DType dtype, const std::vector<const void*>& parts, void* out, int64_t n);
/// out <- the largest of the parts; not a number where any part is. f32, f64; LogicError for others.
void max_parts(DType dtype, const std::vector<const void*>& parts, void* out, int64_t n);

}  // namespace orthant
