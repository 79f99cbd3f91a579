// What the routers of a training step report: load of each expert, dropped picks, and the auxiliary loss. None of it
// depends on the mesh (src/README.md, number 11).
#pragma once

#include <cstdint>
#include <vector>

#include "orthant/context.hpp"

namespace orthant {

/// Of a whole step, the same on every rank.
struct RouterReport {
  double aux_loss = 0;                         ///< mean over mixture layers of the auxiliary loss, without its coefficient
  int64_t dropped = 0;                         ///< picks beyond an expert's capacity
  double load_max_over_mean = 0;               ///< the largest load of an expert of a layer over the mean one
  std::vector<std::vector<int64_t>> load;      ///< picks before any drop: [mixture layer][expert]
  /// Picks that found a place.
  int64_t kept() const {
    int64_t n = -dropped;
    for (const auto& layer : load)
      for (int64_t x : layer) n += x;
    return n;
  }
  int64_t off_rank_rows = 0;                   ///< rows that one pass of the exchange moved between ranks, summed over all ranks
};

class RouterStats {
 public:
  /// `layers` mixture layers of the whole model, `experts` each; `first` is the block of the first one.
  RouterStats(int64_t first, int64_t layers, int64_t experts) : first_(first), layers_(layers), experts_(experts) {}

  /// One micro-batch of block `layer` on this rank's tokens. counts i64 [sequences, experts]: picks before any drop, of
  /// this rank's tokens, or (`whole`) of whole sequences; shares: their sums of shares over this rank's tokens, A
  /// [sequences, experts], or in reproducible mode i64 [2, sequences * experts]. The tensors are kept, not copied.
  void add(int64_t layer, const Tensor& counts, bool whole, const Tensor& shares);
  void add_rows(int64_t dropped, int64_t off_rank_rows);

  /// Sums everything over the mesh and starts anew. Collective over all axes; a stage without mixture layers takes part.
  RouterReport finish(Context& ctx);

 private:
  struct Entry {
    int64_t layer;
    Tensor counts;
    bool whole;
    Tensor shares;
  };
  int64_t first_, layers_, experts_;
  std::vector<Entry> entries_;
  int64_t dropped_ = 0, off_rank_rows_ = 0;
};

}  // namespace orthant
