// A transport of one rank that stands for all: calls take the time of their bytes on a WorkClock, from when the work before
// them is done. Every rank is taken to be at the same place, so what a plan sees is what each rank waits for, but not for
// ranks that are late: messages between stages cost nothing here (the play of the schedule has them).
#include <cmath>

#include "mesh/wire_bytes.hpp"
#include "orthant/collectives.hpp"
#include "support/work_clock.hpp"

namespace orthant {
namespace {

class PlayedTransport : public Transport {
 public:
  PlayedTransport(int ranks, int rank, double seconds_per_byte, std::shared_ptr<WorkClock> clock, std::function<void(double)> waited)
      : ranks_(ranks), rank_(rank), rate_(seconds_per_byte), clock_(std::move(clock)), waited_(std::move(waited)) {}

  Pending gather(const Tensor&, const Tensor& whole) override { return call(wire::once(whole, ranks_)); }
  Pending scatter_sum(const Tensor& whole, const Tensor&) override { return call(wire::once(whole, ranks_)); }
  Pending sum(const Tensor& x) override { return call(wire::twice(x, ranks_)); }
  Pending max(const Tensor& x) override { return call(wire::twice(x, ranks_)); }
  Pending shift(const Tensor& sent, const Tensor& received, int by) override {
    return by % ranks_ == 0 ? Pending() : call(std::max(wire::bytes_of(sent), wire::bytes_of(received)));
  }
  Pending exchange(const Tensor& sent, const std::vector<int64_t>& send_rows, const Tensor& received,
                   const std::vector<int64_t>& receive_rows) override {
    return call(wire::exchanged(sent, send_rows, received, receive_rows, rank_));
  }
  Pending gather_parts(const Tensor&, const Tensor& whole, const std::vector<int64_t>&) override { return call(wire::once(whole, ranks_)); }
  Pending scatter_sum_parts(const Tensor& whole, const Tensor&, const std::vector<int64_t>&) override { return call(wire::once(whole, ranks_)); }
  Pending send(const Tensor&, int, int) override { return {}; }
  Pending receive(const Tensor&, int, int) override { return {}; }

 private:
  Pending call(double wire_bytes) const {
    if (ranks_ == 1) return {};
    const int64_t due = clock_->ready() + static_cast<int64_t>(std::ceil(wire_bytes * rate_ * 1e9));
    return Pending([this, due] { waited_(clock_->wait_until(due)); }, [this, due] { return clock_->ready() >= due; });
  }
  int ranks_, rank_;
  double rate_;
  std::shared_ptr<WorkClock> clock_;
  std::function<void(double)> waited_;
};

}  // namespace

std::unique_ptr<Transport> make_played_transport(int ranks, int rank, double seconds_per_byte, std::shared_ptr<WorkClock> clock,
                                                 std::function<void(double)> waited) {
  return std::make_unique<PlayedTransport>(ranks, rank, seconds_per_byte, std::move(clock), std::move(waited));
}

}  // namespace orthant
