// What a deck becomes on a rank: mesh, backend, parameters, model, optimiser. Shared by every command that runs a model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "deck/all_keys.hpp"
#include "layers/fp8.hpp"
#include "mesh/expected_traffic.hpp"
#include "optim/lr.hpp"
#include "optim/optimizer.hpp"
#include "orthant/context.hpp"
#include "orthant/data.hpp"
#include "orthant/mesh.hpp"
#include "orthant/router_stats.hpp"
#include "orthant/schedule.hpp"
#include "orthant/stage.hpp"
#include "support/work_clock.hpp"
#include "train/loss_scale.hpp"

namespace orthant {

/// run.timing = "sleep": nothing is computed; F, B and W sleep, and messages take bytes / rate.
struct Sleep {
  bool on = false;
  double forward_s = 0;         ///< F of all chunks of a stage; B of the input and W take the same, B with the weights twice
  double seconds_per_byte = 0;
};

/// Deck, model and mesh sizes, before anything is allocated. Every problem of the deck has been reported by now.
struct RunPlan {
  Deck deck;
  ModelConfig model;
  MeshShape mesh;
  bool sequence_parallel = false, reproducible = false;
  Precision precision;
  Recompute recompute = Recompute::none;
  std::vector<std::string> notes;  ///< for the header: keys of config.json that were ignored, ...
  Zero zero;
  Pipeline pipeline;               ///< the lists of all stages, checked
  std::vector<ChunkRange> cut;     ///< blocks of each virtual stage
  Sleep sleep;
  std::optional<Fp8Settings> fp8 = {};  ///< precision.compute = "fp8": then the precision is that of all else, bf16

  int64_t micro() const { return deck[keys::batch::micro]; }
  int64_t global_batch() const { return deck[keys::batch::global]; }
  int64_t sequence() const { return deck[keys::data::sequence]; }
  int64_t micros() const { return global_batch() / (micro() * mesh.dp); }
  /// Token rows of a micro-batch that a rank holds between blocks, and sends to the next stage.
  int64_t shard_tokens() const { return micro() * sequence() / mesh.cp / (sequence_parallel ? mesh.tp : 1); }
};

/// Reads and checks a deck for `ranks` ranks (0: as many as `world` has). Collective over `world`; throws the same error
/// everywhere.
RunPlan make_plan(MPI_Comm world, const std::string& path, const std::vector<std::string>& overrides, int64_t ranks = 0);
/// What follows from deck, model and mesh: schedule, cut and ZeRO. `csv` is the text of a schedule file, if the deck
/// names one.
void finish_plan(RunPlan& plan, const std::string& csv);

/// What the closed forms of the traffic need; refers to the plan.
TrafficPlan traffic_plan(const RunPlan& plan);
OptimizerSettings optimizer_settings(const Deck& deck);
LrSchedule lr_schedule(const Deck& deck, int64_t decay_steps);
DataSettings data_settings(const Deck& deck, int64_t samples);

/// Everything a rank needs to run the model.
class Session {
 public:
  struct Devices {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Axes> axes;
    std::shared_ptr<WorkClock> clock = {};
    std::string note = {};  ///< about the choice of the device, for the header
  };
  /// For the play of a step of run.timing = "sleep" by one rank alone (step_timeline.hpp), on a clock that begins at 0.
  static std::unique_ptr<Session> play(const RunPlan& plan, const Coordinates& at);
  /// On MPI, with the deck's backend.
  Session(const RunPlan& plan, const Mesh& mesh, bool training);
  /// Shapes only, for one rank of the mesh: nothing is computed or sent, memory and traffic are counted.
  Session(const RunPlan& plan, const Coordinates& at, bool training);

  const RunPlan& plan;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Axes> axes;
  std::string device_note;  ///< about the choice of the device, for the header; may be empty
  /// run.timing = "sleep", and plans of it: the clock of this rank's work, else none.
  std::shared_ptr<WorkClock> clock;
  Layout layout;
  Context ctx;
  const Optimizer& optimizer;
  std::unique_ptr<ParamStore> store;
  std::unique_ptr<Stage> stage;
  ActionList actions;          ///< of this stage, in units, with gathers and sums
  ActionList forward_actions;  ///< for validation
  /// Of an action on the clock: its operations, and the seconds from its begin to its end, waits of tp, cp and ep
  /// within it included.
  struct Played {
    double flops = 0, seconds = 0;
  };
  std::map<std::tuple<Act, int64_t, int64_t>, Played> played;  ///< [act, chunk, unit]
  /// Runs in front of every update, and returns when weights and optimiser state may change; may be empty.
  std::function<void()> before_update;
  /// Asked in front of every update with finite loss and gradient norm: what makes the step one that is not taken ("" =
  /// nothing). Must answer alike on all ranks; may be empty.
  std::function<std::string(double loss, double grad_norm)> judge;
  LossScale loss_scale;
  std::unique_ptr<Fp8> fp8;  ///< of a run in FP8
  std::unique_ptr<RouterStats> router_stats;  ///< of the pass under way; none in a model without mixture layers

  /// Parameters by the unit of a chunk that uses them first, and last, in the order of the forward pass: a weight used
  /// twice (tied) stays gathered in between.
  struct Uses {
    std::vector<std::vector<LocalParam*>> first, last;
  };
  const Uses& uses(int64_t chunk) const { return uses_[static_cast<size_t>(chunk)]; }
  /// Number, in the store, of the first unit of a chunk.
  int64_t unit_offset(int64_t chunk) const { return unit_offsets_[static_cast<size_t>(chunk)]; }
  /// What a unit's F, B or W sleeps.
  double sleep_seconds(const Action& action) const;

 private:
  Session(const RunPlan& plan, Devices devices, const Coordinates& at, bool training);
  std::vector<ChunkRange> ranges() const;
  void list_actions();
  std::vector<Uses> uses_;
  std::vector<int64_t> unit_offsets_;
};

/// Weights drawn from the seed, or read from the deck's Hugging Face folder; each rank own rows only. `publish_weights`
/// has to follow.
void fill_weights(Session& session);

/// After own rows of the weights were set (drawn, read, loaded): rounded copies, the tied copy and whole weights follow.
/// Collective over shard and tie.
void publish_weights(Session& session);

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
