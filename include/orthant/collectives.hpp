// Collectives along one axis of the mesh, and what they cost.
//
// A call returns a Pending; the distance between the call and `wait` is the overlap. Sums have the order of the ranks
// (never of arrival), are made in fp32 (fp64 for fp64) and rounded once, so every rank of the axis gets the same bits
// and every run does too. On an axis of size 1 the same calls are local copies.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "orthant/backend.hpp"
#include "orthant/mesh.hpp"

namespace orthant {

/// The rest of a collective call. Must be waited for; waiting twice is harmless.
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  /// `test` says, without blocking, whether `finish` would find everything arrived.
  explicit Pending(std::function<void()> finish, std::function<bool()> test = nullptr)
      : finish_(std::move(finish)), test_(std::move(test)) {}
  Pending(Pending&& other) noexcept : finish_(std::move(other.finish_)), test_(std::move(other.test_)) { other.drop(); }
  Pending& operator=(Pending&& other) noexcept {
    wait();
    finish_ = std::move(other.finish_);
    test_ = std::move(other.test_);
    other.drop();
    return *this;
  }
  /// Waits, unless an error is on its way up: other ranks may then never send, and the message has to get out before
  /// the job is ended. The call is abandoned with its memory, which MPI may still write to.
  ~Pending() {
    if (finish_ && std::uncaught_exceptions() > 0) abandon();
    else wait();
  }
  void wait() {
    if (!finish_) return;
    auto finish = std::move(finish_);
    drop();
    finish();
  }
  /// Whether `wait` would return without waiting for another rank. Lets MPI progress, never blocks. Certain for send
  /// and receive; a call of several rounds (a large sum) says false until it was waited for.
  bool done() { return !finish_ || (test_ && test_()); }

 private:
  void abandon();
  void drop() {  // a function that was moved from may still hold a target
    finish_ = nullptr;
    test_ = nullptr;
  }
  std::function<void()> finish_;
  std::function<bool()> test_;
};

/// One collective call, as kept in the ring that a hang report prints.
struct CallRecord {
  int64_t sequence = 0;  ///< over all axes
  int64_t number = 0;    ///< of the calls on its axis: ranks of an axis make the same ones
  AxisName axis = AxisName::tp;
  const char* op = "";
  const char* site = "";
  int64_t bytes = 0;
  bool finished = false;
  bool waiting = false;  ///< the rank is blocked in its `wait`
};

/// Bytes sent, by axis and operation. The ring convention: all-reduce 2 (n-1)/n S, all-gather and reduce-scatter
/// (n-1)/n S, shift S. A rank keeps n times its share, which is an integer.
class Trace;
class Traffic {
 public:
  struct Entry {
    int64_t calls = 0;
    int64_t scaled_bytes = 0;  ///< n x bytes of this rank
    int64_t ranks = 1;         ///< n
    double seconds = 0;        ///< spent waiting
  };
  int64_t record(AxisName axis, const char* op, const char* site, int64_t ranks, int64_t scaled_bytes);
  /// Into the ring only: a call whose bytes its other end counts.
  int64_t note(AxisName axis, const char* op, const char* site, int64_t bytes);
  /// The rank begins to wait for the call, and has got what it waited for.
  void waiting(int64_t sequence);
  void finished(AxisName axis, int64_t sequence, double seconds);
  const std::map<std::pair<AxisName, std::string>, Entry>& entries() const { return entries_; }
  /// False: every collective call is finished where it is made (comm.overlap = false). Send and receive are not: two
  /// ranks that finish a send to each other before they receive would wait for ever.
  bool overlap = true;
  /// Counts from here on.
  void clear() { entries_.clear(); }
  /// Counts as before: what was sent since `entries` were copied is no part of the traffic that plans predict.
  void put_back(std::map<std::pair<AxisName, std::string>, Entry> entries) { entries_ = std::move(entries); }
  /// The last calls, oldest first. Safe to call from another thread.
  std::vector<CallRecord> ring() const;
  /// Seconds spent waiting on `axis` since the last call of this function.
  double take_seconds(AxisName axis);
  void add_seconds(AxisName axis, double seconds) { waited_[axis] += seconds; }
  /// Seconds that calls of `axis` were under way, one beside the other, since the last call of this function.
  double take_under_way(AxisName axis);
  void add_under_way(AxisName axis, double seconds) { under_way_[axis] += seconds; }
  /// Where calls are drawn (log.trace), or null.
  Trace* trace = nullptr;

 private:
  static constexpr int64_t ring_size = 64;
  std::map<std::pair<AxisName, std::string>, Entry> entries_;
  mutable std::mutex ring_lock_;  // a hang report is made by another thread
  std::vector<CallRecord> ring_ = std::vector<CallRecord>(ring_size);
  std::array<int64_t, axis_names> numbers_{};
  std::map<AxisName, double> waited_, under_way_;
  int64_t next_ = 0;
};

/// How bytes move: MPI between ranks, nowhere when only counted, or nowhere but with the time it would have taken.
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
  /// gather of unequal parts: counts[r] elements (also 0) from rank r; flat dense memory.
  virtual Pending gather_parts(const Tensor& shard, const Tensor& whole, const std::vector<int64_t>& counts) = 0;
  /// scatter_sum into unequal parts: counts[r] elements (also 0) to rank r.
  virtual Pending scatter_sum_parts(const Tensor& whole, const Tensor& shard, const std::vector<int64_t>& counts) = 0;
  /// A dense tensor to rank `to` of the axis; calls of one tag between two ranks arrive in their order. The tensor
  /// stays alive, and must not be written, until the Pending was waited for.
  virtual Pending send(const Tensor& x, int to, int tag) = 0;
  /// x <- what rank `from` sends with this tag, of the same number of bytes.
  virtual Pending receive(const Tensor& x, int from, int tag) = 0;

  /// Lets the work in front of a wait end, where time is played (run.timing = "sleep"): a wait is what comes behind it.
  virtual void catch_up() {}
  /// When the last call was made, and when the last one waited for was complete, ns of the steady clock; 0: now. They
  /// differ from now where time is played.
  virtual int64_t called_ns() const { return 0; }
  virtual int64_t arrived_ns() const { return 0; }
};
class WorkClock;
/// On host memory, where the backend's tensors are copied for each call. `gpu_aware`: what moves and is not added is
/// handed to MPI where it lies on the device.
std::unique_ptr<Transport> make_mpi_transport(Backend& backend, MPI_Comm comm, bool gpu_aware = false);
std::unique_ptr<Transport> make_counting_transport();
/// Moves no numbers and takes the time that a wire of this rate would (run.timing = "sleep"). The ranks of `comm` must
/// share one machine, as they compare their steady clocks.
std::unique_ptr<Transport> make_sleep_transport(MPI_Comm comm, double seconds_per_byte, std::shared_ptr<WorkClock> clock = nullptr);
/// The same for a plan, without other ranks: see played_transport.cpp. `waited` is told the seconds of each wait.
std::unique_ptr<Transport> make_played_transport(int ranks, int rank, double seconds_per_byte, std::shared_ptr<WorkClock> clock,
                                                 std::function<void(double)> waited);

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
  /// The largest of a few control numbers (f32, f64); no traffic.
  void max_control(const Tensor& x) const { transport_->max(x).wait(); }
  Pending shift(const Tensor& sent, const Tensor& received, int by, const char* site) const;
  Pending exchange(const Tensor& sent, const std::vector<int64_t>& send_rows, const Tensor& received,
                   const std::vector<int64_t>& receive_rows, const char* site) const;
  /// The same, counted as operation `op`: what travels beside the rows themselves.
  Pending exchange_as(const char* op, const Tensor& sent, const std::vector<int64_t>& send_rows, const Tensor& received,
                      const std::vector<int64_t>& receive_rows, const char* site) const;
  /// Control numbers (how many rows will come): row r of `sent` to rank r, row r of `received` from it. No traffic.
  void exchange_control(const Tensor& sent, const Tensor& received) const {
    const std::vector<int64_t> one(static_cast<size_t>(size_), 1);
    transport_->exchange(sent, one, received, one).wait();
  }
  /// Control numbers of all ranks, a row a rank. No traffic.
  void gather_control(const Tensor& shard, const Tensor& whole) const { transport_->gather(shard, whole).wait(); }
  /// whole (flat, sum of counts elements) <- the ranks' shards one after the other, counts[r] elements from rank r
  /// (also 0). Counted as all_gather.
  Pending gather_parts(const Tensor& shard, const Tensor& whole, const std::vector<int64_t>& counts,
                       const char* site) const;
  /// Its transpose: shard <- the part of this rank of the sum of `whole` over ranks. Counted as reduce_scatter.
  Pending scatter_sum_parts(const Tensor& whole, const Tensor& shard, const std::vector<int64_t>& counts,
                            const char* site) const;
  /// A dense tensor to another rank of this axis (`to` is never the own rank). Counted as shift, by the sender.
  Pending send(const Tensor& x, int to, int tag, const char* site) const;
  /// Its other end: no bytes of its own, but its wait counts for the axis.
  Pending receive(const Tensor& x, int from, int tag, const char* site) const;

 private:
  Pending timed(int64_t sequence, const char* op, const char* site, int64_t bytes, Pending pending) const;
  void check_parts(const Tensor& shard, const Tensor& whole, const std::vector<int64_t>& counts) const;
  Pending counted(const char* op, const char* site, int64_t scaled_bytes, Pending pending) const;
  AxisName name_;
  int size_, rank_;
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<Traffic> traffic_;
};

class Transports;
/// All axes of a rank, on MPI or NCCL, counting only, or taking time only.
class Axes {
 public:
  /// `transport` as comm.transport has it: "mpi", "nccl", or "auto", which takes NCCL where the backend's devices allow it;
  /// `gpu_aware` as comm.gpu_aware. Collective. UsageError (agreed) for what cannot be had.
  Axes(Backend& backend, const Mesh& mesh, const std::string& transport = "auto", const std::string& gpu_aware = "auto");
  Axes(const MeshShape& shape, const Coordinates& at);             ///< counting, for one rank of any mesh
  /// The same in the times of a wire, as far as one rank alone can tell them: see make_played_transport. Waits are those
  /// of the traffic.
  Axes(const MeshShape& shape, const Coordinates& at, double seconds_per_byte, std::shared_ptr<WorkClock> clock);
  /// Sleeping, see make_sleep_transport. The backend must be one without numbers (meta). UsageError (agreed) on more
  /// than one node, where clocks differ.
  Axes(Backend& backend, const Mesh& mesh, double sleep_seconds_per_byte, std::shared_ptr<WorkClock> clock = nullptr);
  ~Axes();
  const Axis& operator[](AxisName name) const { return *axes_[static_cast<size_t>(name)]; }
  Traffic& traffic() { return *traffic_; }
  /// Whether calls move memory between devices directly, and not through host memory and MPI.
  bool on_device() const;
  /// For the header, on rank 0: the library that carries the calls, and its network. Empty where nothing is sent.
  std::string transport() const;

 private:
  std::unique_ptr<Transports> transports_;  // of a mesh of processes; outlives the axes
  std::shared_ptr<Traffic> traffic_ = std::make_shared<Traffic>();
  std::array<std::unique_ptr<Axis>, axis_names> axes_;
};

}  // namespace orthant
