// The Cartesian mesh of ranks: each axis is one way to cut the work.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace orthant {

/// Axes of the mesh. The first four cut it; the others regroup their ranks:
///   tp_rep   the part of tp that shares one key/value head (tp = kv x rep)
///   shard    the ranks of dp x cp that ZeRO cuts states over, replica the ranks that hold the same cut of them
///   tie      the two holders of a tied embedding when they lie on different stages (0: pp 0, 1: pp tie_head)
///   ep       the ranks among which the experts of a layer are divided, edp_shard x edp_replica those that hold the same
///            experts: ZeRO's shard and replica for them. Over one stage etp x ep x edp = tp x cp x dp
///   none     the rank alone, whatever the mesh: what an uncut dim is cut by
enum class AxisName : int { tp, cp, pp, dp, ep, tp_rep, shard, replica, tie, edp_shard, edp_replica, none };
constexpr int axis_names = 12;
const char* name_of(AxisName axis);

/// Sizes of the axes as resolved from a deck (dp no longer 0).
struct MeshShape {
  int64_t tp = 1, cp = 1, pp = 1, dp = 1;
  int64_t ep = 1, etp = 1;
  std::string order = "tp-cp-pp-dp";  ///< fastest first
  int64_t kv_heads = 0;               ///< of the model, to form tp_rep (0 = no attention)
  int64_t shard = 0;                  ///< ranks of dp x cp over which ZeRO cuts states; divides dp x cp, 0 = all
  int64_t tie_head = 0;               ///< pp coordinate of the head that shares the embedding of pp 0; 0 = none
  int64_t experts = 0;                ///< routed experts of a mixture layer (0 = none)
  bool cut_heads = true, cut_ffn = true, cut_vocab = true;  ///< whether tp cuts them (deck section layout)
  int64_t ranks() const { return tp * cp * pp * dp; }
  /// Ranks that hold the same parameters and see other data.
  int64_t data() const { return dp * cp; }
  int64_t shard_size() const { return shard > 0 ? shard : data(); }
  int64_t replicas() const { return data() / shard_size(); }
  /// Ranks that hold the same experts (1 in a model without).
  int64_t expert_data() const { return experts > 0 ? tp * cp * dp / (ep * etp) : 1; }
  /// Of these, the ranks over which ZeRO cuts the states of experts: as many of zero.shard as divide them.
  int64_t expert_shard_size() const { return shard > 0 ? std::gcd(shard, expert_data()) : expert_data(); }
  int64_t expert_replicas() const { return expert_data() / expert_shard_size(); }
  /// Ranks of tp that share one key/value head.
  int64_t kv_group() const { return cut_heads && kv_heads > 0 && tp > kv_heads ? tp / kv_heads : 1; }
};

/// Coordinates of a rank of a mesh; those on the other axes follow, see below.
struct Coordinates {
  int64_t tp = 0, cp = 0, pp = 0, dp = 0;
};
/// Where rank `rank` of the mesh lies.
Coordinates coordinates_of(const MeshShape& shape, int64_t rank);
/// Place in dp x cp, cp fastest: neighbours of one sequence stay together.
int64_t data_index_of(const MeshShape& shape, const Coordinates& at);
/// Coordinates on shard and replica: consecutive places share the cuts of one copy.
int64_t shard_of(const MeshShape& shape, const Coordinates& at);
int64_t replica_of(const MeshShape& shape, const Coordinates& at);
/// Place in the ranks of one stage that hold experts, from the fastest: etp = tp > 1: cp, dp; etp = 1: tp, cp, dp. ep
/// takes the place modulo ep; ranks of one coordinate of ep (and of tp where etp = tp) hold the same experts.
int64_t expert_place_of(const MeshShape& shape, const Coordinates& at);
int64_t ep_of(const MeshShape& shape, const Coordinates& at);
int64_t edp_of(const MeshShape& shape, const Coordinates& at);
int64_t edp_shard_of(const MeshShape& shape, const Coordinates& at);
int64_t edp_replica_of(const MeshShape& shape, const Coordinates& at);
/// Whether the rank holds one end of a tied embedding, so that its tie axis has size 2.
bool on_tie(const MeshShape& shape, const Coordinates& at);

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
  /// distribution the launcher chose. UsageError (agreed) when the shape does not multiply to the number of ranks, or shard does
  /// not divide dp x cp.
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
  /// Ranks that share this rank's node, itself included.
  int ranks_on_node() const { return ranks_on_node_; }
  const std::string& host() const { return host_; }
  const std::vector<AxisPlacement>& placement() const { return placement_; }
  /// "rank 3 (tp 1, cp 0, pp 0, dp 1) on host", for messages.
  std::string where() const;

 private:
  MeshShape shape_;
  MPI_Comm cart_ = MPI_COMM_NULL;
  std::array<MPI_Comm, axis_names> comms_{};
  std::array<int, axis_names> sizes_{}, coords_{};
  int rank_ = 0, ranks_ = 1, nodes_ = 1, ranks_on_node_ = 1;
  std::string host_;
  std::vector<AxisPlacement> placement_;
};

/// What `text` says on each rank, on rank 0 of `comm` (elsewhere nothing). Collective. For messages: a few hundred bytes.
std::vector<std::string> texts_of_ranks(MPI_Comm comm, const std::string& text);

/// Number of the node of each rank of `comm` (nodes numbered by their lowest rank). Collective.
std::vector<int> node_of_ranks(MPI_Comm comm);

}  // namespace orthant
