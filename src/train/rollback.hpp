// Going back to a checkpoint inside a life.
#pragma once

#include <mpi.h>

#include <string>

#include "orthant/checkpoint.hpp"
#include "train/session.hpp"

namespace orthant {

/// Puts weights and optimiser state back to those of checkpoint `folder`, which is verified first, and returns its state.
/// What is sent for it counts as no training traffic. DataError (agreed) when it is damaged, or has no optimiser state.
/// Nothing may be saving. Collective over `comm`.
TrainState go_back(MPI_Comm comm, Session& session, const std::string& folder);

}  // namespace orthant
