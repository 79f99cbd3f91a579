// Are all copies of each parameter the same bits? A rank whose memory or arithmetic went wrong without a word, or a
// gradient that was not summed over some axis, shows here and nowhere else.
//
// No list of axes: every rank gives the checksum of each piece it holds under a key made of the piece (parameter, place,
// kind), whatever axis made copies of it. Keys are dealt out over the ranks, and the rank that a key falls to compares.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

#include "orthant/checkpoint.hpp"
#include "orthant/store.hpp"

namespace orthant {

/// A piece of the state as one rank holds it.
struct HeldPiece {
  std::string name;  ///< parameter and kind: "layers.0.mlp.up.weight, weights"
  Piece piece;       ///< of the global tensor; never empty
  uint64_t checksum = 0;
};

/// Checksums (XXH64) of all that this rank holds: weights as it computes with them, masters, optimiser slots. Weights that
/// ZeRO 3 gathers only for use count as own rows. `beside`: state that belongs to parameters and is no tensor of the store,
/// as Fp8::pieces; fp32 on the host.
std::vector<HeldPiece> held_pieces(Backend& backend, const ParamStore& store, const std::vector<std::string>& slots,
                                   const std::vector<StatePiece>& beside = {});

/// What differs, for people: the parameter, how many others differ with it, and the ranks in the minority; "" if all copies
/// agree. The same text on all ranks. `who(rank)` is asked on rank 0 alone. Collective over `comm`.
std::string differing_copies(MPI_Comm comm, const std::vector<HeldPiece>& held,
                             const std::function<std::string(int)>& who);

}  // namespace orthant
