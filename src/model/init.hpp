// Initial weights, drawn so that they do not depend on the mesh.
#pragma once

#include <cstdint>

#include "orthant/param.hpp"

namespace orthant {

/// Writes the piece's initial values, row by row, to out[0, piece.elements()). Element e (row-major in the whole
/// parameter) is a function of the parameter's name, the seed and e: normal values are std * z, where Philox 4x32-10
/// with key XXH64(name, seed) and counter e / 4 gives four words, hence two pairs (Box and Muller) in double, rounded
/// once. LogicError for a piece outside the parameter.
void init_param(const Param& param, uint64_t seed, const Piece& piece, float* out);

}  // namespace orthant
