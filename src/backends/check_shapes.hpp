// What every operation demands of its tensors, in one place for all backends: a function for each operation of the list,
// with its name and parameters. LogicError naming the operation and the shapes.
#pragma once

#include "orthant/backend.hpp"

namespace orthant::check {

/// The accumulation type of a compute type: f64 for f64, else f32.
inline DType accumulation(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

/// Bytes of a dense tensor; refuses negative and overflowing shapes.
int64_t bytes_of(DType dtype, int64_t rows, int64_t cols);
void copy(const Tensor& dst, const Tensor& src);
void host(const Tensor& x);

#define ORTHANT_OPERATION(name, parameters, arguments) void name parameters;
#include "orthant/operations.inc"

}  // namespace orthant::check
