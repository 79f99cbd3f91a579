// Versions of the libraries this program runs with.
#pragma once

#include <string>

namespace orthant {

/// One line: MPI, HDF5, oneDNN.
std::string libraries_text();
/// Everything that `orthant --version` prints. Needs no MPI_Init.
std::string version_text();

}  // namespace orthant
