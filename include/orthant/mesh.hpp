// The Cartesian mesh of ranks: each axis is one way to cut the work.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

/// Axes of the mesh. `tp_rep` is the part of tp that shares one key/value head (tp = kv x rep).
enum class AxisName : int { tp, cp, pp, dp, ep, tp_rep };
constexpr int axis_names = 6;
const char* name_of(AxisName axis);

/// Sizes of the axes as resolved from a deck (dp no longer 0).
struct MeshShape {
  int64_t tp = 1, cp = 1, pp = 1, dp = 1;
  int64_t ep = 1, etp = 1;
  std::string order = "tp-cp-pp-dp";  ///< fastest first
  int64_t kv_heads = 0;               ///< of the model, to form tp_rep (0 = no attention)
  int64_t ranks() const { return tp * cp * pp * dp; }
};

/// Coordinates of a rank of a mesh (index by AxisName; ep and tp_rep derived).
struct Coordinates {
  int64_t tp = 0, cp = 0, pp = 0, dp = 0;
};
/// Where rank `rank` of the mesh lies.
Coordinates coordinates_of(const MeshShape& shape, int64_t rank);

/// How an axis lies on the machine, for the header.
struct AxisPlacement {
  AxisName axis;
  int64_t size = 1;
  int64_t stride = 1;      ///< distance in mesh ranks between neighbours on the axis
  int64_t nodes = 1;       ///< the largest number of nodes that one group of this axis spans
};

/// The communicators of this rank. Owns them.
class Mesh {
 public:
  /// Collective over `world`. Ranks are first put in node order, so that the fastest axis stays inside a node whatever
  /// distribution the launcher chose. UsageError (agreed) when the shape does not multiply to the number of ranks.
  Mesh(MPI_Comm world, const MeshShape& shape);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  const MeshShape& shape() const { return shape_; }
  MPI_Comm cart() const { return cart_; }
  MPI_Comm comm(AxisName axis) const { return comms_[static_cast<size_t>(axis)]; }
  int size(AxisName axis) const { return sizes_[static_cast<size_t>(axis)]; }
  int coordinate(AxisName axis) const { return coords_[static_cast<size_t>(axis)]; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int nodes() const { return nodes_; }
  const std::string& host() const { return host_; }
  const std::vector<AxisPlacement>& placement() const { return placement_; }
  /// "rank 3 (tp 1, cp 0, pp 0, dp 1) on host", for messages.
  std::string where() const;

 private:
  MeshShape shape_;
  MPI_Comm cart_ = MPI_COMM_NULL;
  std::array<MPI_Comm, axis_names> comms_{};
  std::array<int, axis_names> sizes_{}, coords_{};
  int rank_ = 0, ranks_ = 1, nodes_ = 1;
  std::string host_;
  std::vector<AxisPlacement> placement_;
};

/// Number of the node of each rank of `comm` (nodes numbered by their lowest rank). Collective.
std::vector<int> node_of_ranks(MPI_Comm comm);

}  // namespace orthant
