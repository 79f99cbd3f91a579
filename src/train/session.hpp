// What a deck becomes on a rank: mesh, backend, parameters, model, optimiser. Shared by every command that runs a model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deck/all_keys.hpp"
#include "optim/lr.hpp"
#include "optim/optimizer.hpp"
#include "orthant/context.hpp"
#include "orthant/data.hpp"
#include "orthant/mesh.hpp"
#include "orthant/stage.hpp"

namespace orthant {

/// Deck, model and mesh sizes, before anything is allocated. Every problem of the deck has been reported by now.
struct RunPlan {
  Deck deck;
  ModelConfig model;
  MeshShape mesh;
  bool sequence_parallel = false, reproducible = false;
  Precision precision;
  Recompute recompute = Recompute::none;
  std::vector<std::string> notes;  ///< for the header: keys of config.json that were ignored, ...

  int64_t micro() const { return deck[keys::batch::micro]; }
  int64_t global_batch() const { return deck[keys::batch::global]; }
  int64_t sequence() const { return deck[keys::data::sequence]; }
  int64_t micros() const { return global_batch() / (micro() * mesh.dp); }
};

/// Reads and checks a deck for `ranks` ranks. Collective over `world`; throws the same error everywhere.
RunPlan make_plan(MPI_Comm world, const std::string& path, const std::vector<std::string>& overrides);

OptimizerSettings optimizer_settings(const Deck& deck);
LrSchedule lr_schedule(const Deck& deck, int64_t decay_steps);
DataSettings data_settings(const Deck& deck, int64_t samples);

/// Everything a rank needs to run the model.
class Session {
 public:
  struct Devices {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Axes> axes;
  };
  /// On MPI, with the deck's backend.
  Session(const RunPlan& plan, const Mesh& mesh, bool training);
  /// Shapes only, for one rank of the mesh: nothing is computed or sent, memory and traffic are counted.
  Session(const RunPlan& plan, const Coordinates& at, bool training);

  const RunPlan& plan;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Axes> axes;
  Layout layout;
  Context ctx;
  const Optimizer& optimizer;
  std::unique_ptr<ParamStore> store;
  std::unique_ptr<Stage> stage;

 private:
  Session(const RunPlan& plan, Devices devices, const Coordinates& at, bool training);
};

/// Weights drawn from the seed, or read from the deck's Hugging Face folder.
void fill_weights(Session& session);

/// Bytes a rank of this run may use, and who says so.
struct MemoryLimit {
  double bytes = 0;
  std::string source;
};
MemoryLimit memory_limit(const Deck& deck, int ranks_on_node);
/// Plays one training step on shapes and compares the peak with the limit. UsageError (agreed, as every rank computes the same for
/// the first rank of the mesh) naming the largest kind and the axes that would cut it. Returns the account.
MemoryAccount planned_memory(const RunPlan& plan, const Coordinates& at);
void check_memory(const RunPlan& plan, const MemoryAccount& account, const MemoryLimit& limit);

}  // namespace orthant
