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
      : ModelBench(comm, mesh_of(c, tp, dp), c, o) {}
  ModelBench(MPI_Comm comm, const MeshShape& mesh, const ModelConfig& c, const RigOptions& o)
      : config(c), rig(comm, mesh, model_params(c), o), stage(make_stage(rig.ctx, c, rig.store)) {}

  /// Mean loss over the tokens that count in the global batch; with `train` also the summed gradients.
  double run(int64_t micro, bool train) {
    const int64_t mine = global_batch / rig.layout.shape().dp, first = mine * rig.layout.at().dp;
    const int64_t valid = tokens.valid(global_batch, rig.ctx.sequence);
    if (train) rig.store.zero_gradients();
    double sum = 0;
    exact = {};
    for (int64_t at = 0; at < mine; at += micro) {
      MicroBatch mb = micro_batch(rig.ctx, first + at, micro, config.vocab, valid, tokens);
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
    for (AxisName axis : {AxisName::cp, AxisName::dp}) {
      MPI_Comm ranks = rig.mesh.comm(axis);
      MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, ranks);
      MPI_Allreduce(MPI_IN_PLACE, &exact.hi, 1, MPI_INT64_T, MPI_SUM, ranks);
      MPI_Allreduce(MPI_IN_PLACE, &exact.lo, 1, MPI_INT64_T, MPI_SUM, ranks);
    }
    exact.carry();  // one pair for all cuts of the same sum
    return sum / static_cast<double>(valid);
  }

  /// x after each unit but the head, of sequences [first, first + count): this rank's rows.
  std::vector<Tensor> hidden(int64_t first, int64_t count) {
    MicroBatch mb = micro_batch(rig.ctx, first, count, config.vocab, 1, tokens);
    rig.ctx.batch = &mb;
    std::vector<Tensor> out;
    const auto& units = stage->chunks[0].units;
    LossSum loss;
    std::unique_ptr<Stash> none;
    for (size_t u = 0; u + 1 < units.size(); ++u)
      out.push_back(units[u]->forward(rig.ctx, out.empty() ? Tensor() : out.back(), false, none, loss));
    rig.ctx.batch = nullptr;
    return out;
  }
  /// This rank's part of the logits [rows, vocab of the rank] after the last block's output x, without sequence
  /// parallelism.
  std::vector<double> logits(const Tensor& x) {
    MicroBatch one;
    one.sequences = x.rows();  // each row as the last position of a sequence of its own
    one.length = 1;
    rig.ctx.batch = &one;
    std::vector<double> out = to_host(*rig.backend, stage->chunks[0].units.back()->last_logits(rig.ctx, x));
    rig.ctx.batch = nullptr;
    return out;
  }

  ModelConfig config;
  Tokens tokens;  ///< what `run` and `hidden` take
  Rig rig;
  std::unique_ptr<Stage> stage;
  ExactSum exact;  ///< of the losses of the last run, not divided
};

/// `picks` elements of each gradient of one rank's model are slopes of the loss, five points each, in fp64.
inline void expect_finite_differences(ModelBench& m, int64_t picks) {
  m.run(2, true);
  for (LocalParam& p : m.rig.store.all()) {
    const std::vector<double> g = gradient(m.rig, p);
    const double size = std::max(1e-3, largest(g)), h = 2e-3;
    for (int64_t pick = 0; pick < picks; ++pick) {
      const auto i =
          static_cast<int64_t>((number("pick " + p.param.name, pick) + 1) / 2 * static_cast<double>(g.size()));
      auto at = [&](double step) {
        Host<double>(*m.rig.backend, p.weight)[i] += step;
        const double loss = m.run(4, false);
        Host<double>(*m.rig.backend, p.weight)[i] -= step;
        return loss;
      };
      const double slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      m.rig.backend->synchronize();
      EXPECT_NEAR(g[static_cast<size_t>(i)], slope, 1e-6 * size) << p.param.name << " element " << i;
    }
  }
}

/// Gradients of `cut` against those of `whole`, which holds the whole model on this rank.
inline void expect_gradients(ModelBench& cut, ModelBench& whole, double tolerance) {
  for (LocalParam& p : cut.rig.store.all()) {
    const std::vector<double> g = gradient(whole.rig, whole.rig.store.at(p.param.name));
    EXPECT_LE(difference(gradient(cut.rig, p), part_of(g, p.param, p.piece)), tolerance * std::max(1e-2, largest(g)))
        << p.param.name;
  }
}

}  // namespace orthant::kit
