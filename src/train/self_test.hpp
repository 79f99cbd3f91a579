// Start-up check of reproducible mode.
#pragma once

#include "train/session.hpp"

namespace orthant {

/// Compares products of whole operands with products of their canonical pieces on this machine, bit by bit. UsageError
/// naming run.reproducible where they differ: then the mode cannot keep its promise here.
void check_reproducible(Session& session);

}  // namespace orthant
