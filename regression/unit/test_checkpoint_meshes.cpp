// What one mesh saves every other mesh loads, to the bit: eight meshes of eight ranks, which together use every axis,
// ZeRO stage and kind of cut, written by each and read by each, with one, several and many data files.
// ranks: 8
// seconds: 300
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "checkpoint/manifest.hpp"
#include "checkpoint_world.hpp"
#include "orthant/model.hpp"
#include "plan_kit.hpp"
#include "train/state.hpp"

namespace orthant {
namespace {

using kit::Keys;
using kit::operator+;
using testing::on_rank_0;
using testing::SharedFolder;

struct MeshCase {
  Keys cut;
  int64_t files;  ///< of its checkpoint
};

/// A vocabulary of 65 on tp 2 and 4, rows of 10 and 12 on 8 shards and stages of unlike length make uneven parts.
std::vector<MeshCase> meshes() {
  const Keys tp = {"mesh.tp=2", "mesh.sequence_parallel=true"}, bf16 = {"precision.compute=bf16"};
  return {{tp + Keys{"mesh.pp=2", "mesh.cp=2", "mesh.ep=4"}, -1},
          {Keys{"mesh.dp=8", "mesh.ep=4", "zero.stage=3"} + bf16, 1},
          {{"mesh.pp=4", "mesh.dp=2", "mesh.ep=2", "zero.stage=1", "pipeline.stage_layers=[0,2,1,1]"}, 3},
          {tp + bf16 +
               Keys{"mesh.pp=2", "mesh.etp=2", "mesh.dp=2", "mesh.ep=2", "zero.stage=2",
                    "pipeline.schedule=interleaved", "pipeline.virtual_stages=2"},
           0},
          {{"mesh.cp=4", "mesh.dp=2", "mesh.ep=8", "zero.stage=3", "context.method=all_gather"}, 3},
          {Keys{"mesh.tp=4", "mesh.sequence_parallel=true", "mesh.dp=2", "mesh.ep=4", "zero.stage=1"} + bf16, 1},
          {{"mesh.dp=8", "mesh.ep=2", "zero.stage=2", "zero.shard=4", "zero.accumulate=full"}, -1},
          {tp + Keys{"mesh.cp=2", "mesh.dp=2", "mesh.ep=2", "mesh.etp=2", "zero.stage=3",
                     "layout.vocab=", "mesh.order=dp-tp-cp-pp"},
           2}};
}

/// Of tensor, slot, place and writer: 24 bits of a mix of them, so that no two neighbours are alike, and all of them
/// matter to the bit.
float value_of(const std::string& group, const std::string& name, int64_t element, int64_t writer) {
  return static_cast<float>(kit::number(group + "/" + name + " of " + std::to_string(writer), element));
}

/// To the nearest, ties to even.
float rounded_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

template <class F>
void for_elements(const StatePiece& p, F f) {
  for (int64_t r = 0; r < p.piece.rows; ++r) {
    for (int64_t c = 0; c < p.piece.cols; ++c) {
      f(p.data[r * p.piece.cols + c], (p.piece.row + r) * p.param->cols() + p.piece.col + c);
    }
  }
}

class World {
 public:
  explicit World(const std::string& family, const Keys& more) {
    for (const MeshCase& m : meshes()) {
      const Keys keys = kit::family(family) + more + Keys{"batch.global=8"} + m.cut;
      runs_.push_back(std::make_unique<kit::Trainer>(MPI_COMM_WORLD, kit::plan_of(keys, kit::world_size())));
    }
  }
  size_t size() const { return runs_.size(); }
  kit::Trainer& operator[](size_t i) { return *runs_[i]; }

  void fill(size_t run, int64_t writer) {
    StateView view(runs_[run]->session);
    for (const StatePiece& p : view.pieces()) {
      for_elements(p, [&](float& x, int64_t e) { x = value_of(p.group, p.param->name, e, writer); });
    }
  }
  void spoil(size_t run) {
    {
      StateView view(runs_[run]->session);
      for (const StatePiece& p : view.pieces()) {
        for_elements(p, [](float& x, int64_t) { x = std::numeric_limits<float>::quiet_NaN(); });
      }
    }
    publish_weights(runs_[run]->session);
  }

  std::string save(size_t run, const std::string& folder, int64_t step) {
    kit::Trainer& t = *runs_[run];
    StateView view(t.session);
    SaveSettings settings;
    settings.keep = static_cast<int>(size());
    settings.files = meshes()[run].files;
    return save_checkpoint(t.mesh.cart(), folder, step, "job", view.pieces(), testing::state_of(step),
                           testing::extras_of_test(), settings)
        .folder;
  }

  /// Masters and slots; the number of elements looked at.
  int64_t expect_states(size_t run, int64_t writer) {
    StateView view(runs_[run]->session);
    int64_t seen = 0;
    for (const StatePiece& p : view.pieces()) {
      int64_t wrong = 0;
      for_elements(p, [&](float x, int64_t e) {
        wrong += std::bit_cast<uint32_t>(x) != std::bit_cast<uint32_t>(value_of(p.group, p.param->name, e, writer));
        ++seen;
      });
      EXPECT_EQ(wrong, 0) << p.group << "/" << p.param->name;
    }
    return seen;
  }
  /// What the model computes with: rounded where it computes in bf16, whole but for ZeRO 3.
  void expect_weights(size_t run, int64_t writer) {
    kit::Trainer& t = *runs_[run];
    const bool rounded = t.session.store->precision().has_copy();
    for (LocalParam& p : t.session.store->all()) {
      const auto wrong = [&](const Tensor& held, const Piece& piece) {
        const std::vector<double> have = kit::to_host(*t.session.backend, held);
        EXPECT_EQ(static_cast<int64_t>(have.size()), piece.rows * piece.cols) << p.param.name;
        int64_t n = 0, i = 0;
        for (int64_t r = 0; r < piece.rows; ++r) {
          for (int64_t c = 0; c < piece.cols; ++c, ++i) {
            const float x =
                value_of("weights", p.param.name, (piece.row + r) * p.param.cols() + piece.col + c, writer);
            n += !(have[static_cast<size_t>(i)] == (rounded && p.trained() ? rounded_to_bf16(x) : x));
          }
        }
        return n;
      };
      EXPECT_EQ(wrong(p.own_weight, p.own), 0) << p.param.name;
      if (p.weight) {
        EXPECT_EQ(wrong(p.weight, p.piece), 0) << p.param.name;
      }
    }
  }

 private:
  std::vector<std::unique_ptr<kit::Trainer>> runs_;
};

int64_t sum_over_ranks(int64_t n) {
  MPI_Allreduce(MPI_IN_PLACE, &n, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  return n;
}

/// Elements of all states that must be there at least once: weights and two slots of what is trained, and the rest.
int64_t states_of(const ModelConfig& model) {
  int64_t n = 0;
  for (const Param& p : model_params(model)) n += p.elements() * (p.trained ? 3 : 1);
  return n;
}

void every_mesh_to_every_mesh(const std::string& family, const Keys& more, size_t writers) {
  World world(family, more);
  SharedFolder folder;
  std::vector<std::string> saved;
  for (size_t w = 0; w < writers; ++w) {
    SCOPED_TRACE("saved by " + kit::text(meshes()[w].cut));
    const auto writer = static_cast<int64_t>(w);
    world.fill(w, writer);
    publish_weights(world[w].session);
    saved.push_back(world.save(w, folder.path, writer + 1));
    EXPECT_GE(sum_over_ranks(world.expect_states(w, writer)), states_of(world[w].plan.model)) << "saving changed it";
  }
  on_rank_0([&] {
    for (const std::string& checkpoint : saved) EXPECT_TRUE(verify_checkpoint(checkpoint).empty()) << checkpoint;
  });
  for (size_t r = 0; r < world.size(); ++r) {
    for (size_t w = 0; w < writers; ++w) {
      SCOPED_TRACE("saved by " + kit::text(meshes()[w].cut) + ", loaded by " + kit::text(meshes()[r].cut));
      world.spoil(r);
      {
        StateView view(world[r].session);
        const TrainState state = load_checkpoint(world[r].mesh.cart(), saved[w], view.pieces(), nullptr);
        EXPECT_EQ(state.step, static_cast<int64_t>(w) + 1);
        EXPECT_EQ(state.integers.at("big"), int64_t{1} << 62);
        EXPECT_TRUE(state.has_optimizer);
      }
      world.expect_states(r, static_cast<int64_t>(w));
      publish_weights(world[r].session);
      world.expect_weights(r, static_cast<int64_t>(w));
    }
  }
}

}  // namespace

// O079, O081: gate and up, experts and the selection bias among the tensors
TEST(CheckpointMeshes, EveryMeshIntoEveryMesh) {
  every_mesh_to_every_mesh("deepseek", {"model.moe.bias_rate=0.01"}, meshes().size());
}

// A tied weight has one state and two holders.
TEST(CheckpointMeshes, TiedWeightsReachBothHolders) {
  every_mesh_to_every_mesh("mixtral", {"model.tie_embeddings=true", "model.moe.experts=8"}, 3);
}

// A load leaves nothing as it was: with a piece too few the spoilt values stay, and the check above sees them.
TEST(CheckpointMeshes, TheCheckSeesWhatIsNotLoaded) {
  World world("deepseek", {});
  SharedFolder folder;
  world.fill(0, 5);
  const std::string saved = world.save(0, folder.path, 1);
  world.spoil(2);
  StateView view(world[2].session);
  std::vector<StatePiece> most = view.pieces();
  const StatePiece last = most.back();
  most.pop_back();
  load_checkpoint(world[2].mesh.cart(), saved, most, nullptr);
  int64_t kept = 0;
  for_elements(last, [&](float x, int64_t) { kept += std::isnan(x); });
  EXPECT_EQ(kept, last.piece.elements());
  for (const StatePiece& p : most) {
    for_elements(p, [&](float x, int64_t e) { ASSERT_EQ(x, value_of(p.group, p.param->name, e, 5)); });
  }
}

}  // namespace orthant
