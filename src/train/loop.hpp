// The training job: set up, resume, steps, checkpoints, report.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

namespace orthant {

/// Runs `orthant train DECK [overrides]`; returns the exit code. Collective over `world`.
int train(MPI_Comm world, const std::string& deck, const std::vector<std::string>& overrides);

}  // namespace orthant
