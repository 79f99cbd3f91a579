// A transport that takes time and moves no numbers: run.timing = "sleep" plays schedules with more ranks than cores.
//
// Each call sends the time at which it was made to the ranks that it concerns; it is complete at the latest of these
// times plus its bytes on the wire (ring convention, as in Traffic) times the seconds a byte takes. So a rank that is
// late holds up the others as it would in a real run, and a call that is waited for late costs nothing. Every call
// has the wire to itself. Times are those of std::chrono::steady_clock, which the processes of one machine share (it
// counts from the start of the machine); Axes refuses more than one node.
//
// With a WorkClock a call is made when the work before it would be done, which may be later than the moment of the call.
//
// Waiting polls with short sleeps: dozens of ranks on two cores must not spend them on waiting.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "mesh/messages.hpp"
#include "mesh/wire_bytes.hpp"
#include "orthant/collectives.hpp"
#include "support/work_clock.hpp"

namespace orthant {
namespace {

using Clock = std::chrono::steady_clock;

/// One call under way: the times of its ranks, and how long its bytes take from the latest of them on.
class Call {
 public:
  Call(MPI_Comm comm, bool synchronous, int tag, int64_t lasts_ns, int64_t made_ns)
      : messages_(comm, synchronous, tag), mine_(made_ns), lasts_(lasts_ns) {}
  // messages hold addresses of the times
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Each receive takes one of `slots` times, which must be made before the first.
  void expect(size_t slots) { theirs_.assign(slots, mine_); }
  void receive(int from) { messages_.receive(&theirs_.at(used_++), sizeof(int64_t), from); }
  void send(int to) { messages_.send(&mine_, sizeof(int64_t), to); }
  /// The sender does not see the wire: it is done when its time is handed over.
  void ends_with_messages() { timed_ = false; }
  /// Data flow from the sender's call on, whenever the receiver asks for them.
  void counts_from_others() { mine_counts_ = false; }

  bool done() { return messages_.test() && (!timed_ || WorkClock::now_ns() >= due()); }
  /// When it was complete; of a send, when its time was handed over.
  int64_t wait() {
    // 50 us at first, for hand-overs between ranks that run; 100 us when it takes longer
    for (int turn = 0; !messages_.test(); ++turn) std::this_thread::sleep_for(std::chrono::microseconds(turn < 20 ? 50 : 100));
    if (!timed_) return WorkClock::now_ns();
    std::this_thread::sleep_until(Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(due()))));
    return due();
  }

 private:
  int64_t due() const {
    int64_t latest = mine_counts_ ? mine_ : 0;
    for (int64_t t : theirs_) latest = std::max(latest, t);
    return latest + lasts_;
  }
  Messages messages_;
  int64_t mine_, lasts_;
  std::vector<int64_t> theirs_;
  size_t used_ = 0;
  bool timed_ = true, mine_counts_ = true;
};

class SleepTransport : public Transport {
 public:
  SleepTransport(MPI_Comm comm, double seconds_per_byte, std::shared_ptr<WorkClock> clock)
      : comm_(comm), rate_(seconds_per_byte), clock_(std::move(clock)), synchronous_(synchronous_sends()) {
    ORTHANT_ENSURE(rate_ >= 0, "a wire that delivers before it is given");
    ORTHANT_MPI(MPI_Comm_size(comm, &size_));
    ORTHANT_MPI(MPI_Comm_rank(comm, &rank_));
  }

  Pending gather(const Tensor&, const Tensor& whole) override { return among_all(wire::once(whole, size_)); }
  Pending scatter_sum(const Tensor& whole, const Tensor&) override { return among_all(wire::once(whole, size_)); }
  Pending sum(const Tensor& x) override { return among_all(wire::twice(x, size_)); }
  Pending max(const Tensor& x) override { return among_all(wire::twice(x, size_)); }
  Pending gather_parts(const Tensor& shard, const Tensor& whole, const std::vector<int64_t>&) override { return gather(shard, whole); }
  Pending scatter_sum_parts(const Tensor& whole, const Tensor& shard, const std::vector<int64_t>&) override {
    return scatter_sum(whole, shard);
  }
  void catch_up() override {
    if (clock_) clock_->catch_up();
  }
  int64_t called_ns() const override { return called_; }
  int64_t arrived_ns() const override { return *arrived_; }

  Pending shift(const Tensor& sent, const Tensor& received, int by) override {
    int to = ((rank_ + by) % size_ + size_) % size_, from = ((rank_ - by) % size_ + size_) % size_;
    if (to == rank_) return {};
    auto c = call(collective_tag, std::max(wire::bytes_of(sent), wire::bytes_of(received)));
    c->expect(1);
    c->receive(from);
    c->send(to);
    return pending(c);
  }

  Pending exchange(const Tensor& sent, const std::vector<int64_t>& send_rows, const Tensor& received,
                   const std::vector<int64_t>& receive_rows) override {
    return among_all(wire::exchanged(sent, send_rows, received, receive_rows, rank_));
  }

  Pending send(const Tensor& x, int to, int tag) override {
    ORTHANT_ENSURE(to != rank_, "send to the own rank");
    auto c = call(point_to_point_tag(tag), wire::bytes_of(x));
    c->ends_with_messages();
    c->send(to);
    return pending(c);
  }

  Pending receive(const Tensor& x, int from, int tag) override {
    ORTHANT_ENSURE(from != rank_, "receive from the own rank");
    auto c = call(point_to_point_tag(tag), wire::bytes_of(x));
    c->counts_from_others();
    c->expect(1);
    c->receive(from);
    return pending(c);
  }

 private:
  std::shared_ptr<Call> call(int tag, double wire_bytes) const {
    called_ = clock_ ? clock_->ready() : WorkClock::now_ns();
    return std::make_shared<Call>(comm_, synchronous_, tag, static_cast<int64_t>(std::ceil(wire_bytes * rate_ * 1e9)), called_);
  }
  Pending pending(const std::shared_ptr<Call>& c) const {
    return Pending(
        [c, clock = clock_, arrived = arrived_] {
          if (clock) clock->catch_up();  // the work before the wait
          *arrived = c->wait();
        },
        [c] { return c->done(); });
  }

  /// No rank is done before all have called.
  Pending among_all(double wire_bytes) const {
    if (size_ == 1) return {};
    auto c = call(collective_tag, wire_bytes);
    c->expect(static_cast<size_t>(size_ - 1));
    for (int r = 0; r < size_; ++r)
      if (r != rank_) c->receive(r);
    for (int r = 0; r < size_; ++r)
      if (r != rank_) c->send(r);
    return pending(c);
  }

  MPI_Comm comm_;
  double rate_;
  std::shared_ptr<WorkClock> clock_;
  bool synchronous_;
  int size_ = 1, rank_ = 0;
  mutable int64_t called_ = 0;
  std::shared_ptr<int64_t> arrived_ = std::make_shared<int64_t>(0);
};

}  // namespace

std::unique_ptr<Transport> make_sleep_transport(MPI_Comm comm, double seconds_per_byte, std::shared_ptr<WorkClock> clock) {
  return std::make_unique<SleepTransport>(comm, seconds_per_byte, std::move(clock));
}

}  // namespace orthant
