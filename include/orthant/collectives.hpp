// Collectives along one axis of the mesh, and what they cost.
//
// A call returns a Pending; the distance between the call and `wait` is the overlap. Sums have the order of the ranks
// (never of arrival), are made in fp32 (fp64 for fp64) and rounded once, so every rank of the axis gets the same bits
// and every run does too. On an axis of size 1 the same calls are local copies.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "orthant/backend.hpp"
#include "orthant/mesh.hpp"

namespace orthant {

/// The rest of a collective call. Must be waited for; waiting twice is harmless.
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  explicit Pending(std::function<void()> finish) : finish_(std::move(finish)) {}
  Pending(Pending&& other) noexcept : finish_(std::move(other.finish_)) { other.finish_ = nullptr; }
  Pending& operator=(Pending&& other) noexcept {
    wait();
    finish_ = std::move(other.finish_);
    other.finish_ = nullptr;
    return *this;
  }
  ~Pending() { wait(); }
  void wait() {
    if (!finish_) return;
    auto finish = std::move(finish_);
    finish_ = nullptr;
    finish();
  }

 private:
  std::function<void()> finish_;
};

/// One collective call, as kept in the ring that a hang report prints.
struct CallRecord {
  int64_t sequence = 0;
  AxisName axis = AxisName::tp;
  const char* op = "";
  const char* site = "";
  int64_t bytes = 0;
  bool finished = false;
};

/// Bytes sent, by axis and operation. The ring convention: all-reduce 2 (n-1)/n S, all-gather and reduce-scatter
/// (n-1)/n S, shift S. A rank keeps n times its share, which is an integer.
class Traffic {
 public:
  struct Entry {
    int64_t calls = 0;
    int64_t scaled_bytes = 0;  ///< n x bytes of this rank
    int64_t ranks = 1;         ///< n
    double seconds = 0;        ///< spent waiting
  };
  int64_t record(AxisName axis, const char* op, const char* site, int64_t ranks, int64_t scaled_bytes);
  void finished(int64_t sequence, double seconds);
  const std::map<std::pair<AxisName, std::string>, Entry>& entries() const { return entries_; }
  /// False: every call is finished where it is made (comm.overlap = false).
  bool overlap = true;
  /// Counts from here on.
  void clear() { entries_.clear(); }
  /// The last calls, oldest first.
  std::vector<CallRecord> ring() const;
  /// Seconds spent waiting on `axis` since the last call of this function.
  double take_seconds(AxisName axis);

 private:
  static constexpr int64_t ring_size = 64;
  std::map<std::pair<AxisName, std::string>, Entry> entries_;
  std::vector<CallRecord> ring_ = std::vector<CallRecord>(ring_size);
  std::map<AxisName, double> waited_;
  int64_t next_ = 0;
};

/// How bytes move: MPI between ranks, or nowhere when only counted.
class Transport {
 public:
  virtual ~Transport() = default;
  /// whole [n, shard] <- shard of each rank, in rank order. Flat dense memory of equal shards.
  virtual Pending gather(const Tensor& shard, const Tensor& whole) = 0;
  /// shard <- sum over ranks of their piece of whole that belongs to this rank (equal pieces). f32, f64, bf16, i64.
  virtual Pending scatter_sum(const Tensor& whole, const Tensor& shard) = 0;
  /// x <- sum over ranks, in place.
  virtual Pending sum(const Tensor& x) = 0;
  /// x <- largest over ranks, in place (f32, f64).
  virtual Pending max(const Tensor& x) = 0;
  /// received <- what the rank `by` before this one (cyclically) sends.
  virtual Pending shift(const Tensor& sent, const Tensor& received, int by) = 0;
  /// Rows of `sent` go to the ranks by `send_rows`, rows come by `receive_rows`.
  virtual Pending exchange(const Tensor& sent, const std::vector<int64_t>& send_rows, const Tensor& received,
                           const std::vector<int64_t>& receive_rows) = 0;
};
std::unique_ptr<Transport> make_mpi_transport(Backend& backend, MPI_Comm comm);
std::unique_ptr<Transport> make_counting_transport();

/// One axis of the mesh with its transport.
class Axis {
 public:
  Axis(AxisName name, int size, int rank, std::unique_ptr<Transport> transport, std::shared_ptr<Traffic> traffic)
      : name_(name), size_(size), rank_(rank), transport_(std::move(transport)), traffic_(std::move(traffic)) {}
  AxisName name() const { return name_; }
  int size() const { return size_; }
  int rank() const { return rank_; }

  Pending gather(const Tensor& shard, const Tensor& whole, const char* site) const;
  Pending scatter_sum(const Tensor& whole, const Tensor& shard, const char* site) const;
  Pending sum(const Tensor& x, const char* site) const;
  Pending max(const Tensor& x, const char* site) const;
  /// A few control numbers (counts, flags): summed like `sum`, but no part of the traffic that plans predict.
  void sum_control(const Tensor& x) const { transport_->sum(x).wait(); }
  Pending shift(const Tensor& sent, const Tensor& received, int by, const char* site) const;
  Pending exchange(const Tensor& sent, const std::vector<int64_t>& send_rows, const Tensor& received,
                   const std::vector<int64_t>& receive_rows, const char* site) const;

 private:
  Pending counted(const char* op, const char* site, int64_t scaled_bytes, Pending pending) const;
  AxisName name_;
  int size_, rank_;
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<Traffic> traffic_;
};

/// All axes of a rank, on MPI or counting only.
class Axes {
 public:
  Axes(Backend& backend, const Mesh& mesh);                        ///< MPI
  Axes(const MeshShape& shape, const Coordinates& at);             ///< counting, for one rank of any mesh
  const Axis& operator[](AxisName name) const { return *axes_[static_cast<size_t>(name)]; }
  Traffic& traffic() { return *traffic_; }

 private:
  std::shared_ptr<Traffic> traffic_ = std::make_shared<Traffic>();
  std::array<std::unique_ptr<Axis>, axis_names> axes_;
};

}  // namespace orthant
