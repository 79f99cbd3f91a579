// A few training steps on one layout, as `train` takes them, without a run folder, checkpoints or logs.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "orthant/mesh.hpp"
#include "train/state.hpp"
#include "train/step.hpp"
#include "train/training_data.hpp"

namespace orthant {

/// Loss and gradient norm of each step; the same on every rank.
struct Curve {
  std::vector<double> loss, norm;
};

/// The first steps of the run that `plan` describes, on the ranks of `comm`. The model, its optimiser and the
/// communicators live as long as the object, so that its weights can be looked at. Errors are those of `train`.
class LayoutRun {
 public:
  /// Collective over `comm`, which has the plan's number of ranks. Trains `steps` steps. `stream_steps` is the run's
  /// length for what depends on it: the order of samples and the decay of the learning rate.
  LayoutRun(MPI_Comm comm, RunPlan plan, int64_t steps, int64_t stream_steps);
  LayoutRun(const LayoutRun&) = delete;
  LayoutRun& operator=(const LayoutRun&) = delete;

  const RunPlan& plan() const { return plan_; }
  const Mesh& mesh() const { return mesh_; }
  const Curve& curve() const { return curve_; }
  /// Sum of the learning rates of all steps: about how far AdamW can have moved a weight.
  double reach() const { return reach_; }
  /// This rank's own rows of weights and slots.
  const std::vector<StatePiece>& state() const { return view_->pieces(); }

 private:
  void check_memory_here() const;
  void open_data(int64_t stream_steps, int64_t steps);
  void train(int64_t steps, int64_t decay_steps);

  const RunPlan plan_;
  Mesh mesh_;
  std::unique_ptr<Session> session_;
  std::optional<TrainingData> data_;
  Curve curve_;
  double reach_ = 0;
  std::unique_ptr<StateView> view_;  // before session_ in destruction
};

/// Whether one rank, with the memory of this rank's node to itself, can hold the plan; `why_not` says what it lacks.
bool fits_one_rank(const RunPlan& plan, std::string* why_not);

}  // namespace orthant
