// Who writes which rectangle, and where it lies: agreed before the first byte is written.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/file_groups.hpp"
#include "checkpoint/hdf5.hpp"
#include "orthant/checkpoint.hpp"

namespace orthant {

/// One tensor as far as a group, or all, write it.
struct Covered {
  std::vector<int64_t> dims;        ///< global
  std::vector<h5::Source> sources;  ///< rectangles in the files of the groups
};
using Coverage = std::map<std::string, Covered>;  // sorted: the order of datasets does not depend on the mesh

/// The outcome of gather_coverage.
struct WritePlan {
  std::vector<int64_t> at;  ///< of each own piece: its first element in the group's dataset; -1 if it is not written
  std::map<std::string, int64_t> totals;  ///< leads: elements of each dataset of the group's file
  Coverage coverage;                      ///< rank 0: everything
};

/// LogicError if a piece has no parameter or data, or lies outside its tensor.
void check_pieces(const std::vector<StatePiece>& pieces);

/// Collective over `comm`, which `groups` cuts. Inside a group, each tensor's rectangles follow each other by column,
/// then row; those that are one taller rectangle together are joined. LogicError unless on rank 0 every tensor that
/// some rank holds is covered exactly once.
WritePlan gather_coverage(MPI_Comm comm, const FileGroups& groups, const std::vector<StatePiece>& pieces);

}  // namespace orthant
