// Rectangles of a model's tensors on rank 0, fetched one by one from the ranks that hold them.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/hf_export.hpp"
#include "orthant/checkpoint.hpp"

namespace orthant {

/// Runs `work` on rank 0 with a source that fills any rectangle of any of `params` (all ranks give the same list) out
/// of the `pieces` of `group` that all ranks hold and write. The other ranks serve until `work` has ended. No rank
/// makes a copy of values: rank 0 receives into the buffer `work` gives, the others send from where their pieces lie.
///
/// Collective over `comm`; what `work` throws is thrown, agreed, on all ranks. LogicError if a piece is of no
/// parameter or outside of it, or if the pieces do not cover what is asked for exactly once.
void with_gathered_pieces(MPI_Comm comm, const std::vector<Param>& params, const std::string& group,
                          const std::vector<StatePiece>& pieces,
                          const std::function<void(const ParamSource& source)>& work);

}  // namespace orthant
