// One group of ranks and its operations, as `orthant bench comm` checks and times them.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "orthant/collectives.hpp"

namespace orthant {

enum class CommOp : int {
  broadcast,
  scatter,
  gather,
  reduce,
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  send_receive
};
constexpr int comm_ops = 9;
const char* name_of(CommOp op);
/// All but broadcast, scatter, gather and reduce.
inline bool made_by_training(CommOp op) { return op >= CommOp::all_gather; }
/// Operations of a list such as "all_reduce,broadcast", each once and in the order of CommOp. UsageError naming a
/// word that is none of them; an empty list is all of them.
std::vector<CommOp> parse_comm_ops(const std::string& list);
/// What the bytes of a call are multiplied with so that bytes / seconds is what a wire carries, whatever the number
/// of ranks: the convention of the nccl-tests. 0 where a rank alone sends nothing.
double bus_factor(CommOp op, int64_t ranks);

/// The operations on messages of fp32 numbers. `bytes` of a call are those of the larger of the two buffers of a rank
/// (gather, scatter: of the root); pieces of ranks are as equal as elements allow, the first ones larger.
///
/// All but broadcast, scatter, gather and reduce are the calls that training makes; these four, which it does not
/// make, are MPI's own, on a device through host memory. Values differ by rank and by place, and are whole numbers, so that sums are exact in any
/// order.
class CommTrial {
 public:
  /// The largest message, and the most ranks whose sums are exact in fp32.
  static constexpr int64_t largest_bytes = int64_t{1} << 30, most_ranks = 65536;
  /// Room for messages of up to `most_bytes`. `axis` and `comm` are the same ranks.
  CommTrial(Backend& backend, const Axis& axis, MPI_Comm comm, int64_t most_bytes);

  /// Sets what is sent, and spoils what is received.
  void fill(CommOp op, int64_t bytes, int root = 0);
  /// One call, finished. Collective over the group.
  void run(CommOp op, int64_t bytes, int root = 0);
  /// What is wrong with the result of one call after `fill` on this rank; empty when all of it is right.
  std::string wrong(CommOp op, int64_t bytes, int root = 0);
  /// Nothing but zeros, for repeated calls: a sum in place would grow past what fp32 holds.
  void clear(CommOp op, int64_t bytes);

  /// fill, run, wrong. FaultError naming `axis`, operation, bytes and rank of the group.
  void check(const std::string& axis, CommOp op, int64_t bytes, int root = 0);
  /// The place of results, [elements, 1] fp32.
  const Tensor& received() const { return received_; }
  /// Bytes a trial takes at most, with those of the calls themselves.
  static int64_t needed_bytes(int64_t most_bytes) { return 3 * most_bytes; }

 private:
  /// `count` numbers from `at` on in a buffer: those of `source` (-1: the sum over ranks), from its number `first`
  /// on.
  struct Piece {
    int64_t at, count;
    int source;
    int64_t first;
  };
  int64_t begin(int64_t n, int rank) const { return n / size_ * rank + std::min<int64_t>(rank, n % size_); }
  int64_t part(int64_t n, int rank) const { return begin(n, rank + 1) - begin(n, rank); }
  std::vector<int64_t> parts(int64_t n) const;
  std::vector<Piece> input(CommOp op, int64_t n, int root) const;
  std::vector<Piece> result(CommOp op, int64_t n, int root) const;
  float expected(const Piece& piece, int64_t i) const;
  void run_mpi(CommOp op, int64_t n, int root);

  Backend& backend_;
  const Axis& axis_;
  MPI_Comm comm_;
  int size_ = 1, rank_ = 0;
  int64_t rank_sum_ = 0;  ///< of what the ranks add to each number
  Tensor sent_, received_;
};

}  // namespace orthant
