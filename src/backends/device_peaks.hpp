// What devices can compute in a second by their maker's word: the yardstick of `mfu`.
#pragma once

#include <string>

#include "orthant/backend.hpp"

namespace orthant {

/// Flops/s of dense products of `t` on a device of that name (as the driver gives it), with sums as this program has
/// them: fp32 without TF32. 0 where it is not known; a name is known only when it says which board it is.
double peak_of_device(const std::string& name, DType t);

/// Name of the device that a backend runs on; empty for backends on the host's cores.
std::string device_name(const Backend& backend);

/// peak_of_device of that device; 0 where there is none. Of products of f32 in TF32, where the backend takes it: half of
/// that of bf16, as the data sheets have it.
double peak_flops(const Backend& backend, DType t);

}  // namespace orthant
