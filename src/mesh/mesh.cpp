// The Cartesian mesh: MPI_Cart_create over node-ordered ranks, MPI_Cart_sub for each axis that cuts it, and splits for
// the axes that regroup its ranks.
#include "orthant/mesh.hpp"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>

#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

const char* name_of(AxisName axis) {
  static const char* names[axis_names] = {"tp", "cp", "pp", "dp", "ep", "tp_rep", "shard", "replica", "tie", "edp_shard", "edp_replica", "none"};
  return names[static_cast<size_t>(axis)];
}

namespace {

/// Axes from the fastest to the slowest.
std::vector<AxisName> parse_order(const std::string& order) {
  std::vector<AxisName> out;
  size_t at = 0;
  while (at <= order.size()) {
    size_t end = std::min(order.find('-', at), order.size());
    std::string word = order.substr(at, end - at);
    for (AxisName a : {AxisName::tp, AxisName::cp, AxisName::pp, AxisName::dp})
      if (word == name_of(a)) out.push_back(a);
    at = end + 1;
  }
  std::set<AxisName> distinct(out.begin(), out.end());
  if (out.size() != 4 || distinct.size() != 4)
    throw UsageError("mesh.order = \"" + order + "\" must name tp, cp, pp and dp once each, fastest first, such as tp-cp-pp-dp", true);
  return out;
}

int64_t size_in(const MeshShape& s, AxisName a) {
  switch (a) {
    case AxisName::tp: return s.tp;
    case AxisName::cp: return s.cp;
    case AxisName::pp: return s.pp;
    case AxisName::dp: return s.dp;
    default: return 1;
  }
}

/// Distance in ranks between neighbours on ep.
int64_t expert_stride(const MeshShape& shape, const std::vector<AxisName>& order) {
  if (shape.ep == 1) return 1;
  const AxisName fastest = shape.etp == 1 && shape.tp > 1 ? AxisName::tp : shape.cp > 1 ? AxisName::cp : AxisName::dp;
  int64_t stride = 1;
  for (AxisName a : order) {
    if (a == fastest) return stride;
    stride *= size_in(shape, a);
  }
  return stride;
}

/// Largest number of distinct nodes among the ranks of one group, over all groups of `axis_comm`.
int64_t nodes_spanned(MPI_Comm axis_comm, MPI_Comm all, int node) {
  int n = 1;
  ORTHANT_MPI(MPI_Comm_size(axis_comm, &n));
  std::vector<int> nodes(static_cast<size_t>(n));
  ORTHANT_MPI(MPI_Allgather(&node, 1, MPI_INT, nodes.data(), 1, MPI_INT, axis_comm));
  long long distinct = static_cast<long long>(std::set<int>(nodes.begin(), nodes.end()).size());
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &distinct, 1, MPI_LONG_LONG, MPI_MAX, all));
  return distinct;
}

}  // namespace

std::vector<int> node_of_ranks(MPI_Comm comm) {
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  // Ranks that can share memory are on one node; the lowest of them names it.
  MPI_Comm node = MPI_COMM_NULL;
  ORTHANT_MPI(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node));
  int lowest = rank;
  ORTHANT_MPI(MPI_Bcast(&lowest, 1, MPI_INT, 0, node));
  ORTHANT_MPI(MPI_Comm_free(&node));
  std::vector<int> leader(static_cast<size_t>(ranks));
  ORTHANT_MPI(MPI_Allgather(&lowest, 1, MPI_INT, leader.data(), 1, MPI_INT, comm));
  std::set<int> sorted(leader.begin(), leader.end());
  std::vector<int> leaders(sorted.begin(), sorted.end());
  for (int& l : leader) l = static_cast<int>(std::lower_bound(leaders.begin(), leaders.end(), l) - leaders.begin());
  return leader;
}

Coordinates coordinates_of(const MeshShape& shape, int64_t rank) {
  Coordinates c;
  for (AxisName a : parse_order(shape.order)) {
    int64_t n = size_in(shape, a), at = rank % n;
    rank /= n;
    if (a == AxisName::tp) c.tp = at;
    if (a == AxisName::cp) c.cp = at;
    if (a == AxisName::pp) c.pp = at;
    if (a == AxisName::dp) c.dp = at;
  }
  return c;
}

int64_t data_index_of(const MeshShape& shape, const Coordinates& at) { return at.cp + shape.cp * at.dp; }
int64_t shard_of(const MeshShape& shape, const Coordinates& at) { return data_index_of(shape, at) % shape.shard_size(); }
int64_t replica_of(const MeshShape& shape, const Coordinates& at) { return data_index_of(shape, at) / shape.shard_size(); }
int64_t expert_place_of(const MeshShape& shape, const Coordinates& at) {
  const int64_t data = data_index_of(shape, at);
  return shape.etp > 1 ? data : at.tp + shape.tp * data;
}
int64_t ep_of(const MeshShape& shape, const Coordinates& at) { return expert_place_of(shape, at) % shape.ep; }
int64_t edp_of(const MeshShape& shape, const Coordinates& at) { return shape.experts > 0 ? expert_place_of(shape, at) / shape.ep : 0; }
int64_t edp_shard_of(const MeshShape& shape, const Coordinates& at) { return edp_of(shape, at) % shape.expert_shard_size(); }
int64_t edp_replica_of(const MeshShape& shape, const Coordinates& at) { return edp_of(shape, at) / shape.expert_shard_size(); }
bool on_tie(const MeshShape& shape, const Coordinates& at) {
  return shape.tie_head > 0 && (at.pp == 0 || at.pp == shape.tie_head);
}

Mesh::Mesh(MPI_Comm world, const MeshShape& shape) : shape_(shape) {
  comms_.fill(MPI_COMM_NULL);
  int world_rank = 0;
  ORTHANT_MPI(MPI_Comm_rank(world, &world_rank));
  ORTHANT_MPI(MPI_Comm_size(world, &ranks_));
  if (shape.ranks() != ranks_)
    throw UsageError("mesh tp " + std::to_string(shape.tp) + " x cp " + std::to_string(shape.cp) + " x pp " + std::to_string(shape.pp) +
                         " x dp " + std::to_string(shape.dp) + " = " + std::to_string(shape.ranks()) + " ranks, but " +
                         std::to_string(ranks_) + " were launched", true);
  if (shape.data() % shape.shard_size() != 0)
    throw UsageError("zero.shard = " + std::to_string(shape.shard) + " must divide dp x cp = " + std::to_string(shape.dp) + " x " +
                         std::to_string(shape.cp) + ", or be 0 for all of them", true);
  ORTHANT_ENSURE(shape.etp == 1 || shape.etp == shape.tp, "etp is 1 or tp");
  ORTHANT_ENSURE(shape.experts % shape.ep == 0 && (shape.etp > 1 ? shape.data() : shape.tp * shape.data()) % shape.ep == 0, "ep does not divide the experts and the ranks that hold them");
  ORTHANT_ENSURE(shape.tie_head >= 0 && shape.tie_head < shape.pp, "the stage of a tied head is not on pp");
  std::vector<AxisName> order = parse_order(shape.order);

  std::vector<int> node = node_of_ranks(world);
  nodes_ = 1 + *std::max_element(node.begin(), node.end());
  const int my_node = node[static_cast<size_t>(world_rank)];
  ranks_on_node_ = static_cast<int>(std::count(node.begin(), node.end(), my_node));
  // Stable in node order: key = position of this rank among ranks sorted by (node, rank).
  std::vector<int> by_node(static_cast<size_t>(ranks_));
  std::iota(by_node.begin(), by_node.end(), 0);
  std::stable_sort(by_node.begin(), by_node.end(), [&](int a, int b) { return node[static_cast<size_t>(a)] < node[static_cast<size_t>(b)]; });
  int key = static_cast<int>(std::find(by_node.begin(), by_node.end(), world_rank) - by_node.begin());
  MPI_Comm ordered = MPI_COMM_NULL;
  ORTHANT_MPI(MPI_Comm_split(world, 0, key, &ordered));

  // MPI_Cart is row-major (last dim fastest), so the dims go in slowest first. No reordering by MPI: ours is done.
  std::vector<int> dims, periods(4, 0);
  for (auto it = order.rbegin(); it != order.rend(); ++it) dims.push_back(static_cast<int>(size_in(shape, *it)));
  ORTHANT_MPI(MPI_Cart_create(ordered, 4, dims.data(), periods.data(), 0, &cart_));
  ORTHANT_MPI(MPI_Comm_free(&ordered));
  ORTHANT_MPI(MPI_Comm_rank(cart_, &rank_));

  int64_t stride = 1;
  for (size_t i = 0; i < 4; ++i) {
    AxisName axis = order[i];
    int keep[4] = {0, 0, 0, 0};
    keep[3 - i] = 1;
    auto a = static_cast<size_t>(axis);
    ORTHANT_MPI(MPI_Cart_sub(cart_, keep, &comms_[a]));
    ORTHANT_MPI(MPI_Comm_size(comms_[a], &sizes_[a]));
    ORTHANT_MPI(MPI_Comm_rank(comms_[a], &coords_[a]));
    placement_.push_back({axis, sizes_[a], stride, nodes_spanned(comms_[a], cart_, my_node)});
    stride *= sizes_[a];
  }

  auto split = [this](AxisName axis, MPI_Comm from, int64_t colour, int64_t at) {
    auto a = static_cast<size_t>(axis);
    ORTHANT_MPI(MPI_Comm_split(from, static_cast<int>(colour), static_cast<int>(at), &comms_[a]));
    ORTHANT_MPI(MPI_Comm_size(comms_[a], &sizes_[a]));
    ORTHANT_MPI(MPI_Comm_rank(comms_[a], &coords_[a]));
  };
  const Coordinates at = coordinates_of(shape, rank_);

  // The part of tp that shares a key/value head: neighbours, when there are more tp ranks than such heads.
  int64_t group = shape.kv_group();
  split(AxisName::tp_rep, comm(AxisName::tp), at.tp / group, at.tp);

  // ZeRO's two: dp x cp of one copy of the parameters, as a grid of replica x shard.
  int64_t f = data_index_of(shape, at), s = shard_of(shape, at), r = replica_of(shape, at);
  int64_t copy = at.pp + shape.pp * at.tp;
  split(AxisName::shard, cart_, r + shape.replicas() * copy, f);
  split(AxisName::replica, cart_, s + shape.shard_size() * copy, f);

  // The two holders of a tied embedding; everybody else alone, in colours that no pair has.
  int64_t pair = at.tp + shape.tp * f;
  split(AxisName::tie, cart_, on_tie(shape, at) ? pair : ranks_ + rank_, at.pp);

  // The expert view of the ranks of one stage: (etp) x ep x edp. A model without experts has axes of one rank here.
  if (shape.experts > 0) {
    const int64_t place = expert_place_of(shape, at), e = ep_of(shape, at), d = edp_of(shape, at);
    const int64_t column = at.pp + shape.pp * (shape.etp > 1 ? at.tp : 0);  // ranks that route among themselves
    const int64_t held = e + shape.ep * column, es = edp_shard_of(shape, at), er = edp_replica_of(shape, at);
    split(AxisName::ep, cart_, d + shape.expert_data() * column, place);
    split(AxisName::edp_shard, cart_, er + shape.expert_replicas() * held, place);
    split(AxisName::edp_replica, cart_, es + shape.expert_shard_size() * held, place);
  } else {
    for (AxisName a : {AxisName::ep, AxisName::edp_shard, AxisName::edp_replica}) split(a, cart_, rank_, 0);
  }
  split(AxisName::none, cart_, rank_, 0);
  placement_.push_back({AxisName::ep, sizes_[static_cast<size_t>(AxisName::ep)], expert_stride(shape, order), nodes_spanned(comm(AxisName::ep), cart_, my_node)});

  char host[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  ORTHANT_MPI(MPI_Get_processor_name(host, &length));
  host_ = host;
}

Mesh::~Mesh() {
  for (MPI_Comm& c : comms_)
    if (c != MPI_COMM_NULL) MPI_Comm_free(&c);
  if (cart_ != MPI_COMM_NULL) MPI_Comm_free(&cart_);
}

std::string Mesh::where() const {
  std::string out = "rank " + std::to_string(rank_) + " (";
  for (AxisName a : {AxisName::tp, AxisName::cp, AxisName::pp, AxisName::dp})
    out += std::string(a == AxisName::tp ? "" : ", ") + name_of(a) + " " + std::to_string(coordinate(a));
  return out + ") on " + host_;
}

std::vector<std::string> texts_of_ranks(MPI_Comm comm, const std::string& text) {
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  int width = static_cast<int>(text.size());
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &width, 1, MPI_INT, MPI_MAX, comm));
  std::string mine = text;
  mine.resize(static_cast<size_t>(width), '\0');
  std::string all(rank == 0 ? static_cast<size_t>(width) * static_cast<size_t>(ranks) : 0, '\0');
  ORTHANT_MPI(MPI_Gather(mine.data(), width, MPI_CHAR, all.data(), width, MPI_CHAR, 0, comm));
  std::vector<std::string> out;
  for (int r = 0; r < ranks && rank == 0; ++r) {
    const std::string one = all.substr(static_cast<size_t>(r) * static_cast<size_t>(width), static_cast<size_t>(width));
    out.push_back(one.substr(0, one.find('\0')));
  }
  return out;
}

}  // namespace orthant
