// See bench_comm_trial.hpp.
#include "commands/bench_comm_trial.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

namespace {

constexpr const char* names[comm_ops] = {"broadcast",      "scatter",    "gather",     "reduce",      "all_gather",
                                         "reduce_scatter", "all_reduce", "all_to_all", "send_receive"};
constexpr float spoiled = -1;  // no number of a rank is below 0

// Number `place` of a rank is the sum of these two, both below 128: sums over 65536 ranks stay below 2^24.
int64_t of_rank(int rank) { return rank * 37 % 127; }
int64_t of_place(int64_t place) {
  const uint64_t mixed = static_cast<uint64_t>(place) * 0x9e3779b97f4a7c15ULL;
  return static_cast<int64_t>(mixed >> 57);
}

// One buffer is both sent and received.
bool in_place(CommOp op) { return op == CommOp::broadcast || op == CommOp::all_reduce; }

}  // namespace

const char* name_of(CommOp op) { return names[static_cast<size_t>(op)]; }

std::vector<CommOp> parse_comm_ops(const std::string& list) {
  std::vector<bool> wanted(comm_ops, list.empty());
  for (size_t at = 0; !list.empty() && at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string word = list.substr(at, end - at);
    const auto found = std::find(std::begin(names), std::end(names), word);
    if (found == std::end(names))
      throw UsageError(fmt::format("--ops: \"{}\" is no operation; there are {}", word, fmt::join(names, ", ")));
    wanted[static_cast<size_t>(found - std::begin(names))] = true;
    at = end + 1;
  }
  std::vector<CommOp> ops;
  for (int i = 0; i < comm_ops; ++i)
    if (wanted[static_cast<size_t>(i)]) ops.push_back(static_cast<CommOp>(i));
  return ops;
}

double bus_factor(CommOp op, int64_t ranks) {
  const double n = static_cast<double>(ranks);
  switch (op) {
    case CommOp::all_reduce:
      return 2 * (n - 1) / n;
    case CommOp::scatter:
    case CommOp::gather:
    case CommOp::all_gather:
    case CommOp::reduce_scatter:
    case CommOp::all_to_all:
      return (n - 1) / n;
    case CommOp::broadcast:
    case CommOp::reduce:
    case CommOp::send_receive:
      return ranks > 1 ? 1 : 0;
  }
  throw LogicError("an operation without a bus factor");
}

CommTrial::CommTrial(Backend& backend, const Axis& axis, MPI_Comm comm, int64_t most_bytes)
    : backend_(backend), axis_(axis), comm_(comm) {
  ORTHANT_MPI(MPI_Comm_size(comm, &size_));
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank_));
  ORTHANT_ENSURE(axis.size() == size_ && axis.rank() == rank_, "an axis and a communicator of other ranks");
  ORTHANT_ENSURE(most_bytes >= 4 && most_bytes <= largest_bytes && size_ <= most_ranks,
                 "messages or groups of a size that is not checked");
  for (int r = 0; r < size_; ++r) rank_sum_ += of_rank(r);
  const int64_t n = most_bytes / 4;
  sent_ = backend.alloc(DType::f32, n, 1, MemoryKind::communication);
  // all-to-all of pieces that are not equal gives the first ranks up to one element of each more
  received_ = backend.alloc(DType::f32, n + size_, 1, MemoryKind::communication);
}

std::vector<int64_t> CommTrial::parts(int64_t n) const {
  std::vector<int64_t> out;
  for (int r = 0; r < size_; ++r) out.push_back(part(n, r));
  return out;
}

// What this rank gives: in its send buffer, or in place.
std::vector<CommTrial::Piece> CommTrial::input(CommOp op, int64_t n, int root) const {
  switch (op) {
    case CommOp::broadcast:
    case CommOp::scatter:
      if (rank_ != root) return {};
      return {{0, n, rank_, 0}};
    case CommOp::gather:
    case CommOp::all_gather:
      return {{0, part(n, rank_), rank_, begin(n, rank_)}};
    default:
      return {{0, n, rank_, 0}};
  }
}

// What this rank has to find in its receive buffer.
std::vector<CommTrial::Piece> CommTrial::result(CommOp op, int64_t n, int root) const {
  const int64_t mine = part(n, rank_), from = begin(n, rank_);
  std::vector<Piece> out;
  switch (op) {
    case CommOp::broadcast:
      return {{0, n, root, 0}};
    case CommOp::scatter:
      return {{0, mine, root, from}};
    case CommOp::reduce:
      if (rank_ == root) out.push_back({0, n, -1, 0});
      return out;
    case CommOp::all_reduce:
      return {{0, n, -1, 0}};
    case CommOp::reduce_scatter:
      return {{0, mine, -1, from}};
    case CommOp::send_receive:
      return {{0, n, (rank_ + size_ - 1) % size_, 0}};
    case CommOp::all_to_all:
      for (int r = 0; r < size_; ++r) out.push_back({r * mine, mine, r, from});
      return out;
    case CommOp::gather:
    case CommOp::all_gather:
      if (op == CommOp::gather && rank_ != root) return out;
      for (int r = 0; r < size_; ++r) out.push_back({begin(n, r), part(n, r), r, begin(n, r)});
      return out;
  }
  throw LogicError("an operation without a result");
}

float CommTrial::expected(const Piece& piece, int64_t i) const {
  const int64_t place = of_place(piece.first + i);
  return static_cast<float>(piece.source < 0 ? size_ * place + rank_sum_ : place + of_rank(piece.source));
}

void CommTrial::fill(CommOp op, int64_t bytes, int root) {
  const int64_t n = bytes / 4;
  ORTHANT_ENSURE(n >= 1 && n <= sent_.rows() && root >= 0 && root < size_,
                 "a message larger than its buffer, or no such root");
  Host<float> sent(backend_, sent_), received(backend_, received_);
  std::fill_n(received.data(), n + size_, spoiled);
  float* to = in_place(op) ? received.data() : sent.data();
  for (const Piece& p : input(op, n, root))
    for (int64_t i = 0; i < p.count; ++i) to[p.at + i] = expected(p, i);
}

void CommTrial::clear(CommOp op, int64_t bytes) {
  const int64_t n = bytes / 4;
  Host<float> sent(backend_, sent_), received(backend_, received_);
  if (!in_place(op)) std::fill_n(sent.data(), n, 0.0F);
  std::fill_n(received.data(), n + size_, 0.0F);
}

std::string CommTrial::wrong(CommOp op, int64_t bytes, int root) {
  int64_t wrong = 0;
  std::string first;
  Host<float> received(backend_, received_);
  for (const Piece& p : result(op, bytes / 4, root))
    for (int64_t i = 0; i < p.count; ++i) {
      const float want = expected(p, i), found = received[p.at + i];
      if (found == want) continue;
      if (wrong++ == 0) first = fmt::format("number {} is {} instead of {}", p.at + i, found, want);
    }
  return wrong == 0 ? "" : fmt::format("{}, and {} other{} wrong", first, wrong - 1, wrong == 2 ? " is" : "s are");
}

void CommTrial::check(const std::string& axis, CommOp op, int64_t bytes, int root) {
  fill(op, bytes, root);
  run(op, bytes, root);
  const std::string bad = wrong(op, bytes, root);
  if (!bad.empty())
    throw FaultError(fmt::format("{} of {} bytes on axis {} gave a wrong result on its rank {} of {}: {}",
                                 name_of(op), bytes, axis, rank_, size_, bad));
}

void CommTrial::run_mpi(CommOp op, int64_t n, int root) {
  Host<float> sent(backend_, sent_), received(backend_, received_);
  std::vector<int> counts, places;
  for (int r = 0; r < size_; ++r) {
    counts.push_back(static_cast<int>(part(n, r)));
    places.push_back(static_cast<int>(begin(n, r)));
  }
  const int all = static_cast<int>(n), mine = counts[static_cast<size_t>(rank_)];
  switch (op) {
    case CommOp::broadcast:
      ORTHANT_MPI(MPI_Bcast(received.data(), all, MPI_FLOAT, root, comm_));
      return;
    case CommOp::reduce:
      ORTHANT_MPI(MPI_Reduce(sent.data(), received.data(), all, MPI_FLOAT, MPI_SUM, root, comm_));
      return;
    case CommOp::scatter:
      ORTHANT_MPI(MPI_Scatterv(sent.data(), counts.data(), places.data(), MPI_FLOAT, received.data(), mine, MPI_FLOAT,
                               root, comm_));
      return;
    case CommOp::gather:
      ORTHANT_MPI(MPI_Gatherv(sent.data(), mine, MPI_FLOAT, received.data(), counts.data(), places.data(), MPI_FLOAT,
                              root, comm_));
      return;
    default:
      throw LogicError("an operation that is none of MPI's own");
  }
}

void CommTrial::run(CommOp op, int64_t bytes, int root) {
  constexpr const char* site = "bench comm";
  const int64_t n = bytes / 4, mine = part(n, rank_);
  const auto sent = [&](int64_t count) { return sent_.row_range(0, count); };
  const auto received = [&](int64_t count) { return received_.row_range(0, count); };
  switch (op) {
    case CommOp::all_gather:
      axis_.gather_parts(sent(mine), received(n), parts(n), site).wait();
      break;
    case CommOp::reduce_scatter:
      axis_.scatter_sum_parts(sent(n), received(mine), parts(n), site).wait();
      break;
    case CommOp::all_reduce:
      axis_.sum(received(n), site).wait();
      break;
    case CommOp::all_to_all:
      axis_
          .exchange(sent(n), parts(n), received(size_ * mine), std::vector<int64_t>(static_cast<size_t>(size_), mine),
                    site)
          .wait();
      break;
    case CommOp::send_receive:
      axis_.shift(sent(n), received(n), 1, site).wait();
      break;
    default:
      run_mpi(op, n, root);
  }
  backend_.synchronize();  // a wait for a device's call only orders what the device does next
}

}  // namespace orthant
