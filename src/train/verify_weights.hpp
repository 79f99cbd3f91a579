// A model's weights after a run, compared with those of another run that cut them otherwise.
#pragma once

#include <mpi.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "orthant/checkpoint.hpp"
#include "orthant/param.hpp"

namespace orthant {

/// One element of one tensor, on one rank.
struct WeightPlace {
  int64_t tensor = -1;  ///< in the order of the model; -1: none
  int64_t row = 0, col = 0;
  int64_t rank = 0;  ///< of the mesh of the run that is compared
  float value = 0, reference = 0;
};

/// Over all ranks.
struct WeightDifference {
  double largest = 0;      ///< of |value - reference|; infinite where one of them alone is not a number
  WeightPlace worst;       ///< where that is; none if all bits are the same
  WeightPlace first;       ///< the first element, in the order of the model, whose bits differ
  WeightPlace first_past;  ///< the first that differs by more than the tolerance
  bool same_bits() const { return first.tensor < 0; }
};

/// Distance of two numbers: 0 for the same bits or the same value, infinite if one alone is not a number.
double distance(double a, double b);

/// Own rows of the weights among a rank's state; the keys are places in the order of the model.
std::map<int64_t, StatePiece> weights_of(const std::vector<Param>& model, const std::vector<StatePiece>& state);

/// Compares a rank's pieces with numbers that are on the same rank: `reference(tensor)` is dense, as large as the
/// piece. Collective over `comm`; the same result on every rank. `mesh_rank` is told with what is found here.
WeightDifference compare_here(MPI_Comm comm, int64_t mesh_rank, const std::map<int64_t, StatePiece>& mine,
                              const std::function<const float*(int64_t)>& reference, double tolerance);

/// Copies of a rank's pieces, to compare a second run on the same mesh with.
std::map<int64_t, std::vector<float>> copy_of(const std::map<int64_t, StatePiece>& mine);

/// The weights of a run, kept while other runs use the memory: cut into blocks of whole rows that are dealt to the
/// ranks in turn, so that a rank holds 1/n of them in fp32 and two blocks (4 MiB each, or a row) while it compares.
class KeptWeights {
 public:
  KeptWeights(MPI_Comm comm, std::vector<Param> model);
  const std::vector<Param>& model() const { return model_; }

  /// Keeps the pieces that write to files. Ranks that took no part in the run pass nothing. Collective.
  void keep(const std::map<int64_t, StatePiece>& mine);
  /// Every rank's own rows, replicas too, against what is kept. Collective.
  WeightDifference compare(int64_t mesh_rank, const std::map<int64_t, StatePiece>& mine, double tolerance) const;
  /// Every rank's own rows against the one copy that writes to files: replicas of a weight have the same bits, on any
  /// mesh and in any mode. Uses nothing of what is kept. Collective.
  WeightDifference compare_replicas(int64_t mesh_rank, const std::map<int64_t, StatePiece>& mine) const;

 private:
  struct Block {
    int64_t tensor = 0, row = 0, rows = 0, cols = 1;
    int owner = 0;
    std::vector<float> kept;  ///< on the owner
    int64_t elements() const { return rows * cols; }
  };
  MPI_Comm comm_;
  int rank_ = 0;
  std::vector<Param> model_;
  std::vector<Block> blocks_;
};

}  // namespace orthant
