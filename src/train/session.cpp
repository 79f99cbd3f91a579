// See session.hpp.
#include "train/session.hpp"

#include <fmt/ranges.h>
#include <omp.h>

#include <fstream>

#include "backends/meta/meta_backend.hpp"
#include "backends/registry.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_folder.hpp"
#include "deck/check.hpp"
#include "model/init.hpp"
#include "optim/sharding.hpp"
#include "orthant/model.hpp"
#include "support/agree.hpp"
#include "train/step.hpp"

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

Fp8Settings fp8_settings(const Deck& deck) {
  namespace kp = keys::precision;
  const std::string& recipe = deck[kp::fp8_recipe];
  Fp8Settings s;
  s.recipe = recipe == "delayed"     ? Fp8Recipe::delayed
             : recipe == "current"   ? Fp8Recipe::current
             : recipe == "blockwise" ? Fp8Recipe::blockwise
                                     : Fp8Recipe::mxfp8;
  s.history = deck[kp::fp8_history];
  s.most_recent = deck[kp::fp8_amax] == "most_recent";
  s.margin = static_cast<int>(deck[kp::fp8_margin]);
  s.keep_ends = deck[kp::fp8_keep_ends];
  return s;
}

}  // namespace

/// Text of the schedule's file, read by rank 0; empty for a schedule of the list.
std::string schedule_text(MPI_Comm world, const Deck& deck) {
  const std::string& name = deck[keys::pipeline::schedule];
  if (is_schedule_name(name)) return {};
  int rank = 0;
  ORTHANT_MPI(MPI_Comm_rank(world, &rank));
  std::string text;
  collectively(world, [&] {
    if (rank != 0) return;
    std::ifstream in(name);
    if (!in) throw UsageError("pipeline.schedule = \"" + name + "\" is neither a schedule (" + fmt::format("{}", fmt::join(schedule_names(), ", ")) + ") nor a file that can be read");
    text.assign(std::istreambuf_iterator<char>(in), {});
    if (text.empty()) throw UsageError("pipeline.schedule = \"" + name + "\": the file is empty");
  });
  return broadcast_text(world, text);
}

void finish_plan(RunPlan& p, const std::string& csv) {
  const Deck& deck = p.deck;
  p.zero = {static_cast<int>(deck[keys::zero::stage]), deck[keys::zero::accumulate] == "full", deck[keys::zero::bucket]};
  p.mesh.shard = p.zero.cuts_state() ? deck[keys::zero::shard] : 0;
  p.pipeline = make_pipeline(deck[keys::pipeline::schedule], {p.mesh.pp, p.micros(), deck[keys::pipeline::virtual_stages]}, csv);
  p.cut = stage_cut(p.model.layers, p.pipeline.virtual_stages(), deck.get_or(keys::pipeline::stage_layers, {}));
  p.mesh.tie_head = p.model.tie_embeddings ? head_stage(p.pipeline) : 0;
  p.sleep.on = deck[keys::run::timing] == "sleep";
  p.sleep.forward_s = deck[keys::run::sleep_ms] * 1e-3;
  p.sleep.seconds_per_byte = 1e-9 / deck[keys::run::sleep_gbps];
}

RunPlan make_plan(MPI_Comm world, const std::string& path, const std::vector<std::string>& overrides, int64_t ranks) {
  int rank = 0, launched = 1;
  ORTHANT_MPI(MPI_Comm_rank(world, &rank));
  ORTHANT_MPI(MPI_Comm_size(world, &launched));
  if (ranks == 0) ranks = launched;
  std::string text;
  collectively(world, [&] {
    if (rank == 0) text = Deck::read_text(path);
  });
  text = broadcast_text(world, text);

  std::optional<RunPlan> plan;
  collectively(world, [&] {
    RunPlan p{checked_deck(text, path, overrides, ranks), {}, {}, false, false, {}, Recompute::none, {}, {}, {}, {}, {}};
    Deck& deck = p.deck;
    std::vector<std::string> problems;
    if (const std::string& folder = deck[keys::model::load]; !folder.empty()) {
      std::vector<std::string> ignored;
      ModelConfig from_file = read_hf_config(folder, &ignored);
      p.model = merge_loaded(deck, from_file, problems);
      for (const std::string& key : ignored) p.notes.push_back("config.json: " + key + " is not used");
      for (const std::string& note : notes_on_loaded(deck, p.model)) p.notes.push_back(note);
    } else {
      p.model = model_config(deck, problems);
    }
    set_model_keys(deck, p.model);
    for (const std::string& s : check_sizes(deck, p.model, ranks)) problems.push_back(s);
    throw_problems(deck.path(), problems);
    p.mesh.tp = deck[keys::mesh::tp];
    p.mesh.cp = deck[keys::mesh::cp];
    p.mesh.pp = deck[keys::mesh::pp];
    p.mesh.dp = data_ranks(deck, ranks);
    p.mesh.ep = deck[keys::mesh::ep];
    p.mesh.etp = deck[keys::mesh::etp];
    p.mesh.order = deck[keys::mesh::order];
    p.mesh.kv_heads = p.model.kv_heads;
    p.mesh.experts = p.model.moe.experts;
    p.mesh.cut_heads = deck[keys::layout::heads] == "tp";
    p.mesh.cut_ffn = deck[keys::layout::ffn] == "tp";
    p.mesh.cut_vocab = deck[keys::layout::vocab] == "tp";
    p.sequence_parallel = deck[keys::mesh::sequence_parallel];
    p.reproducible = deck[keys::run::reproducible];
    const std::string& format = deck[keys::precision::compute];
    if (format == "fp8") p.fp8 = fp8_settings(deck);
    p.precision.compute = format == "bf16" || p.fp8 ? DType::bf16 : format == "fp16" ? DType::f16 : DType::f32;
    p.recompute = recompute_of(deck[keys::memory::recompute]);
    plan = std::move(p);
  });
  const std::string csv = schedule_text(world, plan->deck);
  collectively(world, [&] { finish_plan(*plan, csv); });
  return std::move(*plan);
}

namespace {

ContextMethod context_method(const Deck& deck) {
  const std::string& name = deck[keys::context::method];
  return name == "all_gather" ? ContextMethod::all_gather : name == "all_to_all" ? ContextMethod::all_to_all : ContextMethod::ring;
}

}  // namespace

TrafficPlan traffic_plan(const RunPlan& p) {
  Range fp8_enters;
  if (p.fp8 && one_scale(p.fp8->recipe)) fp8_enters = {p.fp8->keep_ends, p.model.layers - 2 * p.fp8->keep_ends};
  return {p.model, p.mesh, p.pipeline, p.cut, p.zero, p.sequence_parallel, p.reproducible, p.recompute == Recompute::full, p.precision, p.micro(), p.sequence(), p.micros(), context_method(p.deck), fp8_enters};
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

namespace {

StoreSettings store_settings(const RunPlan& p, const Optimizer& optimizer, const Coordinates& at, bool training, const std::vector<Param>& model) {
  StoreSettings s;
  s.training = training;
  s.slots = training ? static_cast<int>(optimizer.slots.size()) : 0;
  s.zero = p.zero;
  if (p.model.tie_embeddings && at.pp != 0) s.copies.insert("embedding.tokens.weight");
  s.model = &model;
  return s;
}

std::unique_ptr<ParamStore> make_store(Backend& backend, const RunPlan& p, const Layout& layout, const Optimizer& optimizer, const Coordinates& at, bool training) {
  const std::vector<Param> model = model_params(p.model);
  return std::make_unique<ParamStore>(backend, unit_params(p.model, p.pipeline, p.cut, at.pp), layout, p.precision, store_settings(p, optimizer, at, training, model));
}

}  // namespace

Session::Session(const RunPlan& p, Devices devices, const Coordinates& at, bool training)
    : plan(p), backend(std::move(devices.backend)), axes(std::move(devices.axes)), device_note(std::move(devices.note)), clock(std::move(devices.clock)), layout(p.mesh, at, p.sequence_parallel, p.reproducible),
      ctx(*backend, *axes, layout, p.precision, p.sequence(), p.recompute), optimizer(orthant::optimizer(p.deck[keys::optimizer::name])),
      store(make_store(*backend, p, layout, optimizer, at, training)), stage(make_stage(ctx, p.model, *store, ranges())), loss_scale(p.deck) {
  ctx.context_method = context_method(p.deck);
  ctx.chunks = p.deck[keys::comm::chunks];
  ctx.seed = static_cast<uint64_t>(p.deck[keys::run::seed]);
  ctx.global_sequences = p.global_batch();
  if (p.model.mixture_layers() > 0) router_stats = std::make_unique<RouterStats>(p.model.moe.first_dense_layers, p.model.mixture_layers(), p.model.moe.experts);
  if (p.fp8) {
    std::vector<Param> params;
    for (const auto& unit : unit_params(p.model, p.pipeline, p.cut, at.pp))
      std::copy_if(unit.begin(), unit.end(), std::back_inserter(params), [&](const Param& q) { return in_fp8(q, *p.fp8, p.model.layers); });
    fp8 = std::make_unique<Fp8>(*backend, *p.fp8, std::move(params), !p.zero.gathers_weights());
    ctx.fp8 = fp8.get();
  }
  list_actions();
}

std::vector<ChunkRange> Session::ranges() const {
  std::vector<ChunkRange> out;
  for (int64_t c = 0; c < plan.pipeline.shape.chunks; ++c) out.push_back(plan.cut[static_cast<size_t>(plan.pipeline.virtual_stage(layout.at().pp, c))]);
  return out;
}

namespace {

/// Elements of a unit's gradients as the first rank of tp counts them. Ranks of tp may hold uneven parts of the vocabulary, yet
/// those that sum together (over tp, and over edp where it takes in ranks of tp) have to fill their buckets at the same units.
int64_t bucket_elements(const ParamUnit& unit, const Layout& layout) {
  Coordinates first = layout.at();
  first.tp = 0;
  const Layout of_first(layout.shape(), first, layout.sequence_parallel(), layout.reproducible());
  int64_t n = 0;
  for (const LocalParam* p : unit.params)
    if (p->trained()) n += p->expert() ? p->rows() * p->cols() : of_first.piece(p->param).elements();  // experts are cut evenly
  return n;
}

}  // namespace

void Session::list_actions() {
  SumPlan sums;
  sums.gather = plan.zero.gathers_weights();
  sums.every_micro = plan.zero.sums_every_micro();
  sums.bucket = plan.zero.bucket;
  int64_t number = 0;
  for (const Chunk& chunk : stage->chunks) {
    unit_offsets_.push_back(number);
    sums.unit_elements.emplace_back();
    Uses uses;
    uses.first.resize(chunk.units.size());
    uses.last.resize(chunk.units.size());
    std::map<LocalParam*, std::pair<size_t, size_t>> range;
    for (size_t u = 0; u < chunk.units.size(); ++u) {
      sums.unit_elements.back().push_back(bucket_elements(store->units()[static_cast<size_t>(number++)], layout));
      for (LocalParam* p : chunk.units[u]->params()) range.try_emplace(p, u, u).first->second.second = u;
    }
    for (LocalParam& p : store->all())  // in the order of the store, the same on every rank
      if (auto it = range.find(&p); it != range.end()) {
        uses.first[it->second.first].push_back(&p);
        uses.last[it->second.second].push_back(&p);
      }
    uses_.push_back(std::move(uses));
  }
  const ActionList& list = plan.pipeline.lists[static_cast<size_t>(layout.at().pp)];
  actions = with_units(list, plan.pipeline.split, sums);
  forward_actions = with_units(forward_only(list), false, sums);
}

double Session::sleep_seconds(const Action& a) const {
  const double chunk = plan.sleep.forward_s / static_cast<double>(plan.pipeline.shape.chunks);
  const double whole = a.act == Act::B && !plan.pipeline.split ? 2 * chunk : chunk;
  return whole / static_cast<double>(stage->chunks[static_cast<size_t>(a.chunk)].units.size());
}

namespace {

/// OpenMP threads of a rank: the deck's, else OMP_NUM_THREADS, else an even share of the node's cores.
void set_threads(const Deck& deck, int ranks_on_node) {
  int64_t threads = deck[keys::run::threads];
  if (threads == 0 && std::getenv("OMP_NUM_THREADS")) return;
  if (threads == 0) threads = std::max(1, omp_get_num_procs() / ranks_on_node);
  omp_set_num_threads(static_cast<int>(threads));
}

/// A clock on which the operations of a meta backend take time.
std::shared_ptr<WorkClock> on_a_clock(Backend& backend, bool real) {
  auto clock = std::make_shared<WorkClock>(real);
  dynamic_cast<MetaBackend&>(backend).times(clock);
  return clock;
}

/// What the deck asks of the device's products, once it is known which device that is. UsageError where it lacks them.
void settle(const RunPlan& plan, Backend& backend) {
  if (plan.deck[keys::precision::tf32]) backend.allow_tf32();
  if (!plan.fp8) return;
  const Fp8Recipe recipe = plan.fp8->recipe;
  std::optional<BlockScale> blocks;
  if (recipe == Fp8Recipe::blockwise) blocks = BlockScale::fitted;
  if (recipe == Fp8Recipe::mxfp8) blocks = BlockScale::mx;
  const std::string problem = backend.fp8_problem(blocks);
  if (!problem.empty()) throw UsageError(plan.deck.show(keys::precision::fp8_recipe) + " on the backend " + backend.name() + ": " + problem);
  if (plan.deck[keys::device::backend] == "auto") throw_problems(plan.deck.path(), check_fp8_sizes(plan.deck, plan.model, backend.name()));
}

Session::Devices make_devices(const RunPlan& plan, const Mesh& mesh) {
  set_threads(plan.deck, mesh.ranks_on_node());
  Session::Devices made;
  ChosenBackend chosen{"meta", ""};
  if (!plan.sleep.on) chosen = choose_backend(plan.deck[keys::device::backend], mesh.cart());
  collectively(mesh.cart(), [&] {
    made.backend = make_backend(chosen.name);
    settle(plan, *made.backend);
  }, mesh.where());
  if (plan.sleep.on) made.clock = on_a_clock(*made.backend, true);
  made.axes = plan.sleep.on ? std::make_unique<Axes>(*made.backend, mesh, plan.sleep.seconds_per_byte, made.clock)
                            : std::make_unique<Axes>(*made.backend, mesh, plan.deck[keys::comm::transport], plan.deck[keys::comm::gpu_aware]);
  made.axes->traffic().overlap = plan.deck[keys::comm::overlap];
  made.note = chosen.note;
  return made;
}

Coordinates here(const Mesh& mesh) {
  return {mesh.coordinate(AxisName::tp), mesh.coordinate(AxisName::cp), mesh.coordinate(AxisName::pp), mesh.coordinate(AxisName::dp)};
}

}  // namespace

Session::Session(const RunPlan& p, const Mesh& mesh, bool training) : Session(p, make_devices(p, mesh), here(mesh), training) {
  if (clock && training) played = play(p, here(mesh))->played;
}

std::unique_ptr<Session> Session::play(const RunPlan& plan, const Coordinates& at) {
  Devices made;
  made.backend = make_backend("meta");
  made.clock = on_a_clock(*made.backend, false);
  made.axes = std::make_unique<Axes>(plan.mesh, at, plan.sleep.seconds_per_byte, made.clock);
  made.axes->traffic().overlap = plan.deck[keys::comm::overlap];
  std::unique_ptr<Session> s(new Session(plan, std::move(made), at, true));
  Timers timers;
  const OptimizerSettings settings = optimizer_settings(plan.deck);
  const auto blank = [&](int64_t) { return blank_batch(s->ctx, plan.micro(), plan.sequence(), token_facts(plan, -1)); };
  train_step(*s, blank, 1, settings, 0.0, 1, timers);  // counts the operations of each action
  for (int axis = 0; axis < axis_names; ++axis) s->axes->traffic().take_seconds(static_cast<AxisName>(axis));
  train_step(*s, blank, 1, settings, 0.0, 2, timers);  // in their times
  return s;
}

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

void publish_weights(Session& session) {
  session.store->round_weights();
  Sharding(session.ctx, *session.store).publish();
}

}  // namespace orthant
