// See session.hpp.
#include "train/session.hpp"

#include <omp.h>

#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_folder.hpp"
#include "deck/check.hpp"
#include "model/init.hpp"
#include "orthant/model.hpp"
#include "support/agree.hpp"

namespace orthant {

namespace {

std::string broadcast_text(MPI_Comm world, std::string text) {
  long long size = static_cast<long long>(text.size());
  ORTHANT_MPI(MPI_Bcast(&size, 1, MPI_LONG_LONG, 0, world));
  text.resize(static_cast<size_t>(size));
  ORTHANT_MPI(MPI_Bcast(text.data(), static_cast<int>(size), MPI_CHAR, 0, world));
  return text;
}

Recompute recompute_of(const std::string& word) {
  return word == "full" ? Recompute::full : word == "selective" ? Recompute::selective : Recompute::none;
}

std::string backend_name(const Deck& deck) {
  const std::string& name = deck[keys::device::backend];
  return name == "auto" ? "cpu" : name;
}

}  // namespace

RunPlan make_plan(MPI_Comm world, const std::string& path, const std::vector<std::string>& overrides) {
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(world, &rank));
  ORTHANT_MPI(MPI_Comm_size(world, &ranks));
  std::string text;
  collectively(world, [&] {
    if (rank == 0) text = Deck::read_text(path);
  });
  text = broadcast_text(world, text);

  std::optional<RunPlan> plan;
  collectively(world, [&] {
    RunPlan p{checked_deck(text, path, overrides, ranks), {}, {}, false, false, {}, Recompute::none, {}};
    Deck& deck = p.deck;
    std::vector<std::string> problems;
    if (const std::string& folder = deck[keys::model::load]; !folder.empty()) {
      std::vector<std::string> ignored;
      ModelConfig from_file = read_hf_config(folder, &ignored);
      p.model = merge_loaded(deck, from_file, problems);
      for (const std::string& key : ignored) p.notes.push_back("config.json: " + key + " is not used");
    } else {
      p.model = model_config(deck, problems);
    }
    set_model_keys(deck, p.model);
    for (const std::string& s : check_sizes(deck, p.model, ranks)) problems.push_back(s);
    throw_problems(deck.path(), problems);
    if (deck[keys::checkpoint::async]) p.notes.push_back("checkpoint.async: this build saves while training waits");
    p.mesh.tp = deck[keys::mesh::tp];
    p.mesh.cp = deck[keys::mesh::cp];
    p.mesh.pp = deck[keys::mesh::pp];
    p.mesh.dp = data_ranks(deck, ranks);
    p.mesh.order = deck[keys::mesh::order];
    p.mesh.kv_heads = p.model.kv_heads;
    p.sequence_parallel = deck[keys::mesh::sequence_parallel];
    p.reproducible = deck[keys::run::reproducible];
    p.precision.compute = deck[keys::precision::compute] == "bf16" ? DType::bf16 : DType::f32;
    p.recompute = recompute_of(deck[keys::memory::recompute]);
    plan = std::move(p);
  });
  return std::move(*plan);
}

OptimizerSettings optimizer_settings(const Deck& deck) {
  OptimizerSettings s;
  s.name = deck[keys::optimizer::name];
  s.beta1 = deck[keys::optimizer::betas][0];
  s.beta2 = deck[keys::optimizer::betas][1];
  s.eps = deck[keys::optimizer::eps];
  s.momentum = deck[keys::optimizer::momentum];
  s.weight_decay = deck[keys::optimizer::weight_decay];
  s.clip = deck[keys::optimizer::clip];
  return s;
}

LrSchedule lr_schedule(const Deck& deck, int64_t decay_steps) {
  return {lr_kind(deck[keys::optimizer::schedule]), deck[keys::optimizer::lr], deck[keys::optimizer::min_lr], deck[keys::optimizer::warmup_steps],
          decay_steps, deck[keys::optimizer::wsd_steps]};
}

DataSettings data_settings(const Deck& deck, int64_t samples) {
  DataSettings s;
  s.train = deck[keys::data::train];
  s.weights = deck.get_or(keys::data::weights, {});
  s.valid = deck[keys::data::valid];
  s.sequence = deck[keys::data::sequence];
  s.split = deck[keys::data::split];
  s.seed = deck.get_or(keys::data::seed, deck[keys::run::seed]);
  s.samples = samples;
  return s;
}

Session::Session(const RunPlan& p, Devices devices, const Coordinates& at, bool training)
    : plan(p), backend(std::move(devices.backend)), axes(std::move(devices.axes)), layout(p.mesh, at, p.sequence_parallel, p.reproducible),
      ctx(*backend, *axes, layout, p.precision, p.sequence(), p.recompute), optimizer(orthant::optimizer(p.deck[keys::optimizer::name])),
      store(std::make_unique<ParamStore>(*backend, model_params(p.model), layout, p.precision, training, training ? static_cast<int>(optimizer.slots.size()) : 0)),
      stage(make_stage(ctx, p.model, *store)) {}

namespace {

/// OpenMP threads of a rank: the deck's, else OMP_NUM_THREADS, else an even share of the node's cores.
void set_threads(const Deck& deck, int ranks_on_node) {
  int64_t threads = deck[keys::run::threads];
  if (threads == 0 && std::getenv("OMP_NUM_THREADS")) return;
  if (threads == 0) threads = std::max(1, omp_get_num_procs() / ranks_on_node);
  omp_set_num_threads(static_cast<int>(threads));
}

Session::Devices make_devices(const RunPlan& plan, const Mesh& mesh) {
  MPI_Comm node = MPI_COMM_NULL;
  int ranks_on_node = 1;
  ORTHANT_MPI(MPI_Comm_split_type(mesh.cart(), MPI_COMM_TYPE_SHARED, mesh.rank(), MPI_INFO_NULL, &node));
  ORTHANT_MPI(MPI_Comm_size(node, &ranks_on_node));
  ORTHANT_MPI(MPI_Comm_free(&node));
  set_threads(plan.deck, ranks_on_node);
  auto backend = make_backend(backend_name(plan.deck));
  auto axes = std::make_unique<Axes>(*backend, mesh);
  axes->traffic().overlap = plan.deck[keys::comm::overlap];
  return {std::move(backend), std::move(axes)};
}

Coordinates here(const Mesh& mesh) {
  return {mesh.coordinate(AxisName::tp), mesh.coordinate(AxisName::cp), mesh.coordinate(AxisName::pp), mesh.coordinate(AxisName::dp)};
}

}  // namespace

Session::Session(const RunPlan& p, const Mesh& mesh, bool training) : Session(p, make_devices(p, mesh), here(mesh), training) {}

Session::Session(const RunPlan& p, const Coordinates& at, bool training)
    : Session(p, Devices{make_backend("meta"), std::make_unique<Axes>(p.mesh, at)}, at, training) {}

void fill_weights(Session& session) {
  const RunPlan& plan = session.plan;
  const std::string& folder = plan.deck[keys::model::load];
  if (folder.empty()) {
    auto seed = static_cast<uint64_t>(plan.deck[keys::run::seed]);
    session.store->fill([&](const Param& p, const Piece& piece, float* out) { init_param(p, seed, piece, out); });
    return;
  }
  HfFolder files(folder);
  files.check(model_params(plan.model));
  session.store->fill([&](const Param& p, const Piece& piece, float* out) { files.read(p, piece, out); });
}

}  // namespace orthant
