// The measurements of the pre-flight check. All ranks work at the same time, so that a node shows what it gives a
// run: cores that share memory, caches and power slow each other down.
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <type_traits>

#include "mesh/transports.hpp"
#include "orthant/mesh.hpp"
#include "support/agree.hpp"
#include "train/preflight.hpp"

namespace orthant {

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::max(1e-9, std::chrono::duration<double>(Clock::now() - begin).count());
}

template <class T>
T agree(MPI_Comm comm, MPI_Op op, T x) {
  const auto type = std::is_same_v<T, double> ? MPI_DOUBLE : MPI_INT64_T;
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &x, 1, type, op, comm));
  return x;
}

class OwnedComm {
 public:
  OwnedComm(MPI_Comm from, int colour, int key) { ORTHANT_MPI(MPI_Comm_split(from, colour, key, &comm_)); }
  ~OwnedComm() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }
  OwnedComm(const OwnedComm&) = delete;
  OwnedComm& operator=(const OwnedComm&) = delete;
  MPI_Comm get() const { return comm_; }
  bool mine() const { return comm_ != MPI_COMM_NULL; }
  int size() const {
    int n = 0;
    ORTHANT_MPI(MPI_Comm_size(comm_, &n));
    return n;
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Square products of one size until the time is over; c is fp32.
class Products {
 public:
  Products(Backend& backend, DType type, int64_t n) : backend_(backend), n_(n) {
    const Tensor wide = backend.alloc(DType::f32, n, n, MemoryKind::workspace);
    {
      Host<float> h(backend, wide);
      for (int64_t i = 0; i < n * n; ++i) h[i] = static_cast<float>(i * 7 % 13 - 6) / 8;
    }
    a_ = backend.alloc(type, n, n, MemoryKind::workspace);
    b_ = backend.alloc(type, n, n, MemoryKind::workspace);
    c_ = backend.alloc(DType::f32, n, n, MemoryKind::workspace);
    backend.copy(a_, wide);
    backend.copy(b_, wide);
    once();  // makes the kernel
  }
  double once() {
    const auto begin = Clock::now();
    backend_.gemm(a_, false, b_, false, c_, false);
    backend_.synchronize();
    return seconds_since(begin);
  }
  double flops() const { return 2.0 * static_cast<double>(n_) * static_cast<double>(n_) * static_cast<double>(n_); }

 private:
  Backend& backend_;
  int64_t n_;
  Tensor a_, b_, c_;
};

/// GFLOP/s of this rank, over the time of the slowest rank of the node: where ranks share a core, each works alone
/// for a while.
double gemm_rate(MPI_Comm world, MPI_Comm node, Backend& backend, DType type, double seconds) {
  const auto start = Clock::now();
  ORTHANT_MPI(MPI_Barrier(world));
  int64_t n =
      256;  // doubled until a product takes milliseconds, so that large nodes are filled and slow ones not kept
  for (; n < 4096; n *= 2) {
    const double s = Products(backend, type, n).once();
    if (s > 2e-3 || 16 * s > seconds / 4) break;
  }
  n = agree(world, MPI_MIN, n);
  Products products(backend, type, n);
  ORTHANT_MPI(MPI_Barrier(world));
  const auto begin = Clock::now();
  double flops = 0;
  do {
    products.once();
    flops += products.flops();
  } while (seconds_since(start) < seconds);
  return flops / agree(node, MPI_MAX, seconds_since(begin)) / 1e9;
}

/// Memory that programs could still have on this node; 0 when the system does not say.
double available_bytes() {
  std::ifstream in("/proc/meminfo");
  for (std::string name, rest; in >> name && std::getline(in, rest);)
    if (name == "MemAvailable:") return std::atof(rest.c_str()) * 1024;
  return 0;
}

/// Elements of each of the three arrays: past the caches, as far as time and memory allow.
int64_t triad_elements(int ranks_on_node, double seconds) {
  const double threads = omp_get_max_threads();
  const double cache = std::max(0L, ::sysconf(_SC_LEVEL3_CACHE_SIZE));
  double bytes = std::max({32e6, 16e6 * threads, 4 * cache / 3 / ranks_on_node});
  bytes = std::min(bytes, seconds * threads * 3e8);  // untouched memory takes longer than the triad itself
  if (const double available = available_bytes(); available > 0)
    bytes = std::min(bytes, available / ranks_on_node / 12);
  return std::max<int64_t>(1 << 18, static_cast<int64_t>(bytes / 8));
}

/// GB/s of this rank, over the same time; a = b + s c counted as two reads and a write.
double triad_rate(MPI_Comm world, const OwnedComm& node, double seconds) {
  const auto start = Clock::now();
  const int64_t n = agree(world, MPI_MIN, triad_elements(node.size(), seconds));
  // each thread is the first to touch its part, so that this comes from the memory next to it
  const auto untouched = [n] { return std::unique_ptr<double[]>(new double[static_cast<size_t>(n)]); };
  const auto a = untouched(), b = untouched(), c = untouched();
  double *x = a.get(), *y = b.get(), *z = c.get();
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) x[i] = 0, y[i] = 1, z[i] = 0.5;
  ORTHANT_MPI(MPI_Barrier(world));
  const auto begin = Clock::now();
  double passes = 0;
  do {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; ++i) x[i] = y[i] + 0.25 * z[i];
    std::swap(x, y);
    ++passes;
  } while (seconds_since(start) < seconds);
  const double taken = agree(node.get(), MPI_MAX, seconds_since(begin)),
               sum = 1 + 0.125 * passes;  // each pass adds 0.125 to what the last one wrote
  if (y[0] != sum || y[n - 1] != sum) throw FaultError("preflight: memory gave other numbers than were written");
  return 24 * static_cast<double>(n) * passes / taken / 1e9;
}

/// GB/s on the wire of a ring, of all-reduces as training makes them; -1 on one rank. Collective over the ranks of
/// `transports`, of which `comm` are some.
double all_reduce_rate(Backend& backend, Transports& transports, MPI_Comm comm, double seconds) {
  int ranks = 1;
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  const auto transport = transports.make(comm, AxisName::none);
  if (ranks == 1) return -1;
  const auto start = Clock::now();
  const Tensor x = backend.alloc(DType::f32, 1, 1 << 20, MemoryKind::communication);
  backend.zero(x);
  const auto timed = [&](int64_t calls) {
    ORTHANT_MPI(MPI_Barrier(comm));
    const auto begin = Clock::now();
    for (int64_t n = 0; n < calls; ++n) transport->sum(x).wait();
    backend.synchronize();
    return agree(comm, MPI_MAX, seconds_since(begin));
  };
  timed(1);
  double calls = 0, taken = 0;
  const auto left = [&] { return agree(comm, MPI_MIN, seconds - seconds_since(start)); };
  for (double batch = 1, rest = 1; rest > 0; batch = std::clamp(std::floor(calls / taken * rest / 2), 1.0, 1e6)) {
    taken += timed(static_cast<int64_t>(batch));
    calls += batch;
    rest = left();
  }
  const double n = ranks;
  return 2 * (n - 1) / n * static_cast<double>(x.bytes()) * calls / taken / 1e9;
}

/// The neighbour of node `i` of a ring of `n` in a round, -1 for none. Every pair of neighbours meets in one round.
int partner_of(int i, int n, int round) {
  const int pairs = n / 2 * 2;  // of an odd ring the last node meets the first in a round of its own
  if (round == 2) return i == 0 ? n - 1 : i == n - 1 ? 0 : -1;
  if (round == 0) return i >= pairs ? -1 : i ^ 1;
  if (n % 2 == 1) return i == 0 ? -1 : ((i - 1) ^ 1) + 1;
  return i % 2 == 1 ? (i + 1) % n : (i + n - 1) % n;
}

/// Of the first rank of a node, with those of the nodes before and behind it. A slow link is in both pairs of its
/// node, and in one of its neighbours': the better one tells them apart.
double neighbour_rate(Backend& backend, const PreflightSettings& settings, MPI_Comm leaders, double seconds) {
  Transports transports(backend, leaders, settings.transport, settings.gpu_aware);
  int node = 0, nodes = 1;
  ORTHANT_MPI(MPI_Comm_rank(leaders, &node));
  ORTHANT_MPI(MPI_Comm_size(leaders, &nodes));
  const int rounds = nodes < 2 ? 0 : nodes == 2 ? 1 : nodes % 2 == 0 ? 2 : 3;
  double best = -1;
  for (int round = 0; round < rounds; ++round) {
    const int partner = partner_of(node, nodes, round);
    const OwnedComm pair(leaders, partner < 0 ? node : std::min(node, partner), node);
    best = std::max(best, all_reduce_rate(backend, transports, pair.get(), seconds / rounds));
  }
  return best;
}

/// What travels to rank 0.
struct Sent {
  double ranks, gemm, memory, inside, between;
  char host[MPI_MAX_PROCESSOR_NAME];
};

}  // namespace

Measured measure_nodes(MPI_Comm world, const PreflightSettings& settings) {
  int rank = 0;
  ORTHANT_MPI(MPI_Comm_rank(world, &rank));
  const std::vector<int> nodes = settings.nodes.empty() ? node_of_ranks(world) : settings.nodes;
  const OwnedComm node(world, nodes.at(static_cast<size_t>(rank)), rank);
  int rank_in_node = 0;
  ORTHANT_MPI(MPI_Comm_rank(node.get(), &rank_in_node));
  const OwnedComm leaders(world, rank_in_node == 0 ? 0 : MPI_UNDEFINED, rank);  // in the order of nodes, rank 0 first
  Measured measured;
  measured.backend = choose_backend(settings.backend, world).name;
  std::unique_ptr<Backend> backend;
  collectively(world, [&] {
    backend = make_backend(measured.backend);
    if (settings.tf32) backend->allow_tf32();
  });
  Transports transports(*backend, world, settings.transport, settings.gpu_aware);
  measured.transport = transports.text();

  const double part =
      0.9 * settings.seconds / 3;  // the rest goes to what lies between, and to the last call of each part
  double rates[2] = {gemm_rate(world, node.get(), *backend, settings.type, part), 0};
  rates[1] = triad_rate(world, node, part);
  Sent mine{};
  mine.ranks = node.size();
  ORTHANT_MPI(MPI_Barrier(world));
  mine.inside = all_reduce_rate(*backend, transports, node.get(), part / 2);
  ORTHANT_MPI(MPI_Barrier(world));
  if (leaders.mine()) mine.between = neighbour_rate(*backend, settings, leaders.get(), part / 2);
  ORTHANT_MPI(MPI_Reduce(rank_in_node == 0 ? MPI_IN_PLACE : rates, rates, 2, MPI_DOUBLE, MPI_SUM, 0, node.get()));
  if (!leaders.mine()) return measured;

  mine.gemm = rates[0], mine.memory = rates[1];
  int length = 0;
  ORTHANT_MPI(MPI_Get_processor_name(mine.host, &length));
  std::vector<Sent> all(static_cast<size_t>(leaders.size()));
  constexpr int bytes = sizeof(Sent);
  ORTHANT_MPI(MPI_Gather(&mine, bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, 0, leaders.get()));
  if (rank == 0)
    for (const Sent& s : all)
      measured.rates.push_back({s.host, static_cast<int64_t>(s.ranks), s.gemm, s.memory, s.inside, s.between});
  return measured;
}

}  // namespace orthant
