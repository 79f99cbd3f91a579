// The pre-flight check of `orthant train`: how fast each node computes, reads memory and sums with others, before
// step 1.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "orthant/tensor.hpp"

namespace orthant {

/// What a node did with all its ranks at work at once. Below 0: not measured, as there was nobody to sum with.
struct NodeRates {
  std::string host;
  int64_t ranks = 1;
  double gemm = -1;     ///< GFLOP/s, the sum over its ranks
  double memory = -1;   ///< GB/s of a triad, the sum over its ranks
  double inside = -1;   ///< GB/s (2 (n-1)/n x bytes / seconds) of an all-reduce among its ranks
  double between = -1;  ///< the same of its first rank and that of a neighbour; the better one of two neighbours
};

/// A rate of a node against what other nodes with as many ranks reach: their median (the node itself included), or of
/// two nodes the better one.
struct NodeShare {
  size_t node = 0;       ///< place in the list of rates
  const char* quantity;  ///< "GEMM", "memory", "all-reduce in the node", "all-reduce with neighbours"
  const char* unit;
  double rate = 0, reference = 0;
  size_t compared = 2;  ///< nodes
  double share() const { return rate / reference; }
};

/// All rates that can be compared, node by node. A node that is alone with its number of ranks has none.
std::vector<NodeShare> compare_nodes(const std::vector<NodeRates>& rates);
/// Those below a share, the lowest first.
std::vector<NodeShare> shares_below(std::vector<NodeShare> shares, double bound);
/// "n3: GEMM 41 GFLOP/s, 0.45 x the median of 4 nodes (91)"
std::string share_text(const std::vector<NodeRates>& rates, const NodeShare& share);
/// Table for people: every node where they are few, else the median and the worst ones.
std::string preflight_table(const std::vector<NodeRates>& rates, const std::vector<NodeShare>& shares);

/// A node below this share of what others do is named.
constexpr double slow_share = 0.8;

struct PreflightSettings {
  double seconds = 10;          ///< for all parts together
  double require = 0;           ///< a node below this share ends the run
  std::string backend = "cpu";  ///< whose GEMM is measured, as device.backend has it
  DType type = DType::f32;      ///< and in which type
  bool tf32 = false;            ///< and whether those of f32 may be TF32
  std::string transport = "auto", gpu_aware = "auto";  ///< of the all-reduces, as the keys of the section comm have them
  std::vector<int> nodes;       ///< node of each rank, numbered by their lowest rank; empty: as the system has them
};

/// What was measured, and on what.
struct Measured {
  std::vector<NodeRates> rates;
  std::string backend;    ///< "cuda"
  std::string transport;  ///< "NCCL 2.28.3 between devices, network …", "MPI"
};
/// Measures the nodes of `world`. Collective; the rates are on rank 0, elsewhere none. UsageError (agreed) for a backend
/// or transport that is not to be had. (preflight_rates.cpp)
Measured measure_nodes(MPI_Comm world, const PreflightSettings& settings);

/// Measures, prints the table on rank 0, and names slow nodes on standard output and standard error. Collective.
/// FaultError (agreed) when a node is below `require`.
void preflight(MPI_Comm world, const PreflightSettings& settings);

}  // namespace orthant
