// orthant bench comm [DECK] [key=value …]: what each collective moves in a second, on each axis of a mesh and the
// world.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <set>

#include "commands/bench.hpp"
#include "commands/bench_comm_trial.hpp"
#include "mesh/transports.hpp"
#include "orthant/error.hpp"
#include "support/agree.hpp"
#include "train/console.hpp"

namespace orthant {

const char* const bench_comm_notes =
    "Without a deck: mesh.tp, mesh.cp, mesh.pp, mesh.dp and mesh.order alone, such as `bench comm mesh.tp=2`, and "
    "device.backend,\n"
    "comm.transport and comm.gpu_aware; without a mesh only all ranks together (world). Axes of one rank are left out; zero.shard and the experts of a deck are "
    "measured\n"
    "where they are other ranks than an axis before them. All groups of an axis work at the same time, and a row "
    "tells of\n"
    "the slowest rank of all.\n"
    "all_gather, reduce_scatter, all_reduce, all_to_all and send_receive (to the next rank, from the one before) are "
    "the\n"
    "calls that training makes, on the backend and transport that it takes; broadcast, scatter, gather and reduce, "
    "which it\n"
    "does not make, are those of MPI in host memory, rank 0 being the root. Every result is checked before it is timed, on numbers that differ by rank and place: exit 4.\n"
    "  bytes               of fp32 numbers in the larger of a rank's two buffers (scatter, gather: of the root)\n"
    "  seconds             mean over the calls of the time of the slowest rank, each behind a barrier; seconds_min: "
    "the least\n"
    "  algorithm_gb_per_s  1e-9 x bytes / seconds\n"
    "  bus_gb_per_s        that times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter, all_to_all, "
    "scatter\n"
    "                      and gather, 1 for broadcast, reduce and send_receive: the convention of the nccl-tests; n "
    "ranks\n"
    "  transport           nccl or mpi\n"
    "A rank needs up to three times the largest message.";

namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* csv_head =
    "axis,size_of_axis,nodes_spanned,operation,bytes,calls,seconds,seconds_min,algorithm_gb_per_s,bus_gb_per_s,transport";
constexpr int64_t most_calls = 10000;

std::string counted(int64_t n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

/// Ranks that communicate with each other: one group of an axis, or all ranks.
struct Group {
  std::string name;
  MPI_Comm comm = MPI_COMM_NULL;  ///< the mesh's
  int64_t nodes = 1;              ///< the largest number of nodes of a group of this axis
  std::unique_ptr<Axis> axis;
};

int64_t nodes_of(MPI_Comm comm, MPI_Comm all, int node) {
  int size = 1;
  ORTHANT_MPI(MPI_Comm_size(comm, &size));
  std::vector<int> nodes(static_cast<size_t>(size));
  ORTHANT_MPI(MPI_Allgather(&node, 1, MPI_INT, nodes.data(), 1, MPI_INT, comm));
  int distinct = static_cast<int>(std::set<int>(nodes.begin(), nodes.end()).size());
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &distinct, 1, MPI_INT, MPI_MAX, all));
  return distinct;
}

/// Whether everybody has the same ranks, in the same order, in both.
bool same_ranks(MPI_Comm a, MPI_Comm b, MPI_Comm all) {
  int how = MPI_UNEQUAL;
  ORTHANT_MPI(MPI_Comm_compare(a, b, &how));
  int same = how == MPI_IDENT || how == MPI_CONGRUENT ? 1 : 0;
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_MIN, all));
  return same == 1;
}

/// `axes` false: all ranks alone, where nobody has said what they are divided into.
std::vector<Group> groups_of(const Mesh& mesh, Transports& transports, bool axes) {
  const int node = node_of_ranks(mesh.cart())[static_cast<size_t>(mesh.rank())];
  const auto traffic = std::make_shared<Traffic>();
  std::vector<Group> groups;
  const auto add = [&](const std::string& name, MPI_Comm comm, AxisName axis, int size, int rank) {
    groups.push_back({name, comm, nodes_of(comm, mesh.cart(), node),
                      std::make_unique<Axis>(axis, size, rank, transports.make(comm, axis), traffic)});
  };
  for (const AxisName a : {AxisName::tp, AxisName::cp, AxisName::pp, AxisName::dp, AxisName::ep, AxisName::tp_rep,
                           AxisName::shard, AxisName::replica, AxisName::edp_shard, AxisName::edp_replica}) {
    if (!axes || mesh.size(a) == 1) continue;
    const bool regroups = a >= AxisName::ep;
    const auto same = [&](const Group& g) { return same_ranks(g.comm, mesh.comm(a), mesh.cart()); };
    const bool known = regroups && std::any_of(groups.begin(), groups.end(), same);
    if (!known) add(name_of(a), mesh.comm(a), a, mesh.size(a), mesh.coordinate(a));
  }
  add("world", mesh.cart(), AxisName::none, mesh.ranks(), mesh.rank());
  return groups;
}

/// What a deck says of the machine, or a command line without one.
struct Setup {
  Deck deck;
  MeshShape shape;
};

Setup setup_alone(const std::vector<std::string>& words, int64_t ranks) {
  for (const std::string& w : words) {
    const std::string key = w.substr(0, w.find('='));
    if (std::set<std::string>{"mesh.tp", "mesh.cp", "mesh.pp", "mesh.dp", "mesh.order", "device.backend",
                              "comm.transport", "comm.gpu_aware"}
            .count(key) == 0)
      throw UsageError("bench comm: " + w +
                       ": without a deck only mesh.tp, mesh.cp, mesh.pp, mesh.dp, mesh.order, device.backend, "
                       "comm.transport and comm.gpu_aware can be set");
  }
  std::vector<std::string> not_needed;
  for (const KeyInfo& key : all_keys()) not_needed.push_back(key.name);
  Setup setup{Deck::parse("", "the command line", words, not_needed), {}};
  const Deck& deck = setup.deck;
  MeshShape& shape = setup.shape;
  shape.tp = deck[keys::mesh::tp];
  shape.cp = deck[keys::mesh::cp];
  shape.pp = deck[keys::mesh::pp];
  shape.dp = deck[keys::mesh::dp];
  shape.order = deck[keys::mesh::order];
  const int64_t others = shape.tp * shape.cp * shape.pp;
  // what does not divide is refused by the mesh
  if (shape.dp == 0) shape.dp = std::max<int64_t>(1, ranks / others);
  return setup;
}

/// UsageError where a rank has no room for messages of `bytes`.
void check_room(const MemoryLimit& limit, int64_t bytes) {
  const auto needed = static_cast<double>(CommTrial::needed_bytes(bytes));
  if (needed > limit.bytes)
    throw UsageError(fmt::format(
        "bench comm: messages of {} need up to {} on each rank, and a rank may use {} ({}); "
        "a smaller --max fits",
        bytes_text(static_cast<double>(bytes)), bytes_text(needed), bytes_text(limit.bytes), limit.source));
}

struct Row {
  int64_t calls = 0;
  double seconds = 0, least = 0;
};

double slowest(MPI_Comm all, double seconds) {
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, all));
  return seconds;
}

Row measure(MPI_Comm all, CommTrial& trial, CommOp op, int64_t bytes, const CommSettings& settings) {
  const auto call = [&] {
    ORTHANT_MPI(MPI_Barrier(all));
    const auto begin = Clock::now();
    trial.run(op, bytes);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  trial.clear(op, bytes);
  call();
  const auto begin = Clock::now();
  call();
  const double one = slowest(all, std::chrono::duration<double>(Clock::now() - begin).count());
  const double fit = std::min(settings.seconds / std::max(one, 1e-9), static_cast<double>(most_calls));
  Row row;
  row.calls = settings.repeat > 0 ? settings.repeat : std::max<int64_t>(2, static_cast<int64_t>(fit));
  std::vector<double> seconds;
  // a clock may be coarser than a call
  for (int64_t n = 0; n < row.calls; ++n) seconds.push_back(std::max(call(), 1e-9));
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, seconds.data(), static_cast<int>(row.calls), MPI_DOUBLE, MPI_MAX, all));
  for (const double s : seconds) row.seconds += s / static_cast<double>(row.calls);
  row.least = *std::min_element(seconds.begin(), seconds.end());
  return row;
}

/// Where rank 0 writes: a table for people on standard output, rows into a file, or with "-" rows instead of the
/// table.
class Output {
 public:
  Output(const std::string& path, const Transports& transports) : path_(path), nccl_(transports.on_device()) {
    if (path != "-") say("transport " + transports.text() + "\n");
    if (path.empty()) return;
    if (path == "-")
      std::printf("%s\n", csv_head);
    else
      file_.open(path);
    if (path != "-") file_ << csv_head << '\n' << std::flush;
    check();
  }
  void group(const Group& g) const {
    if (path_ == "-") return;
    say(fmt::format("{}: {} on {}\n", g.name, counted(g.axis->size(), "rank"), counted(g.nodes, "node")));
    say(fmt::format("  {:<14} {:>10} {:>6} {:>12} {:>12} {:>11} {:>9}\n", "operation", "bytes", "calls", "mean us",
                    "least us", "algo GB/s", "bus GB/s"));
  }
  void row(const Group& g, CommOp op, int64_t bytes, const Row& r) {
    const double algorithm = static_cast<double>(bytes) / r.seconds / 1e9;
    const double bus = algorithm * bus_factor(op, g.axis->size());
    const std::string line =
        fmt::format("{},{},{},{},{},{},{:.6g},{:.6g},{:.6g},{:.6g},{}\n", g.name, g.axis->size(), g.nodes, name_of(op),
                    bytes, r.calls, r.seconds, r.least, algorithm, bus, nccl_ && made_by_training(op) ? "nccl" : "mpi");
    if (path_ == "-")
      say(line);
    else
      say(fmt::format("  {:<14} {:>10} {:>6} {:>12.2f} {:>12.2f} {:>11.4g} {:>9.4g}\n", name_of(op), bytes, r.calls,
                      r.seconds * 1e6, r.least * 1e6, algorithm, bus));
    std::fflush(stdout);
    if (file_.is_open()) file_ << line << std::flush;
    check();
  }
  void say(const std::string& text) const { std::fputs(text.c_str(), stdout); }

 private:
  void check() const {
    if (!path_.empty() && path_ != "-" && !(file_.is_open() && file_))
      throw DataError("--csv: " + path_ + " cannot be written");
  }
  std::string path_;
  bool nccl_;
  std::ofstream file_;
};

std::vector<int64_t> sizes_of(const CommSettings& s) {
  if (s.least % 4 != 0 || s.least < 4 || s.most < s.least || s.most > CommTrial::largest_bytes)
    throw UsageError(
        fmt::format("bench comm: --min {} --max {}: sizes are multiples of 4 bytes (fp32), the first at most "
                    "the last, and the last at most {} (1 GiB)",
                    s.least, s.most, CommTrial::largest_bytes));
  std::vector<int64_t> sizes;
  for (int64_t bytes = s.least; bytes <= s.most; bytes *= 2) sizes.push_back(bytes);
  return sizes;
}

}  // namespace

int bench_comm(const CommandArgs& args, const std::vector<std::string>& words, const CommSettings& settings) {
  std::vector<int64_t> sizes;
  std::vector<CommOp> ops;
  std::optional<Setup> setup;
  const bool with_deck = !words.empty() && words[0].find('=') == std::string::npos;
  collectively(args.world, [&] {
    sizes = sizes_of(settings);
    ops = parse_comm_ops(settings.ops);
    if (!with_deck) setup = setup_alone(words, args.ranks);
    if (args.ranks > CommTrial::most_ranks)
      throw UsageError(fmt::format("bench comm: {} ranks; sums are exact in fp32, and so can be checked, on up to {}",
                                   args.ranks, CommTrial::most_ranks));
  });
  if (with_deck) {
    const RunPlan plan = make_plan(args.world, words[0], {words.begin() + 1, words.end()});
    setup = Setup{plan.deck, plan.mesh};
  }
  const Mesh mesh(args.world, setup->shape);
  const Deck& deck = setup->deck;
  const ChosenBackend chosen = choose_backend(deck[keys::device::backend], mesh.cart());
  std::unique_ptr<Backend> backend;
  collectively(
      mesh.cart(),
      [&] {
        check_room(memory_limit(deck, mesh.ranks_on_node()), sizes.back());
        backend = make_backend(chosen.name);
      },
      mesh.where());
  Transports transports(*backend, mesh.cart(), deck[keys::comm::transport], deck[keys::comm::gpu_aware]);
  std::unique_ptr<Output> out;
  collectively(mesh.cart(), [&] {
    if (mesh.rank() == 0) out = std::make_unique<Output>(settings.csv, transports);
  });

  const bool axes = with_deck || std::any_of(words.begin(), words.end(), [](const std::string& w) { return w.starts_with("mesh."); });
  for (const Group& group : groups_of(mesh, transports, axes)) {
    std::unique_ptr<CommTrial> trial;
    collectively(
        mesh.cart(), [&] { trial = std::make_unique<CommTrial>(*backend, *group.axis, group.comm, sizes.back()); },
        mesh.where());
    if (out && !settings.check_only) out->group(group);
    for (const CommOp op : ops)
      for (const int64_t bytes : sizes) {
        collectively(
            mesh.cart(), [&] { trial->check(group.name, op, bytes); }, mesh.where());
        if (settings.check_only) continue;
        const Row row = measure(mesh.cart(), *trial, op, bytes, settings);
        collectively(mesh.cart(), [&] {
          if (out) out->row(group, op, bytes, row);
        });
      }
    if (out && settings.check_only)
      out->say(fmt::format("{}: {} x {}: the right result on each of {}\n", group.name,
                           counted(static_cast<int64_t>(ops.size()), "operation"),
                           counted(static_cast<int64_t>(sizes.size()), "size"), counted(mesh.ranks(), "rank")));
  }
  return 0;
}

}  // namespace orthant
