// A whole model on a rig: loss and gradients of a fixed global batch of four sequences.
#pragma once

#include "mesh_kit.hpp"
#include "optim/step.hpp"
#include "orthant/model.hpp"
#include "orthant/stage.hpp"

namespace orthant::kit {

constexpr int64_t global_batch = 4;

class ModelBench {
 public:
  ModelBench(MPI_Comm comm, int64_t tp, int64_t dp, const ModelConfig& c, const RigOptions& o)
      : config(c), rig(comm, mesh_of(c, tp, dp), model_params(c), o), stage(make_stage(rig.ctx, c, rig.store)) {}

  /// Mean loss over the tokens that count in the global batch; with `train` also the summed gradients.
  double run(int64_t micro, bool train) {
    const int64_t mine = global_batch / rig.layout.shape().dp, first = mine * rig.layout.at().dp;
    const int64_t valid = valid_tokens(global_batch, rig.ctx.sequence);
    if (train) rig.store.zero_gradients();
    double sum = 0;
    exact = {};
    for (int64_t at = 0; at < mine; at += micro) {
      MicroBatch mb = micro_batch(rig.ctx, first + at, micro, config.vocab, valid);
      rig.ctx.batch = &mb;
      std::unique_ptr<Stash> stash;
      const LossSum loss = stage->forward(rig.ctx, train, stash);
      if (train) stage->backward(rig.ctx, stash);
      sum += loss.value;
      exact.hi += loss.exact.hi;
      exact.lo += loss.exact.lo;
      rig.ctx.batch = nullptr;
    }
    if (train) sum_gradients(rig.ctx, rig.store);
    MPI_Comm dp = rig.mesh.comm(AxisName::dp);
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, dp);
    MPI_Allreduce(MPI_IN_PLACE, &exact.hi, 1, MPI_INT64_T, MPI_SUM, dp);
    MPI_Allreduce(MPI_IN_PLACE, &exact.lo, 1, MPI_INT64_T, MPI_SUM, dp);
    exact.carry();  // one pair for all cuts of the same sum
    return sum / static_cast<double>(valid);
  }

  ModelConfig config;
  Rig rig;
  std::unique_ptr<Stage> stage;
  ExactSum exact;  ///< of the losses of the last run, not divided
};

/// Gradients of `cut` against those of `whole`, which holds the whole model on this rank.
inline void expect_gradients(ModelBench& cut, ModelBench& whole, double tolerance) {
  for (LocalParam& p : cut.rig.store.all()) {
    const std::vector<double> g = gradient(whole.rig, whole.rig.store.at(p.param.name));
    EXPECT_LE(difference(gradient(cut.rig, p), part_of(g, p.param, p.piece)), tolerance * std::max(1e-2, largest(g)))
        << p.param.name;
  }
}

}  // namespace orthant::kit
