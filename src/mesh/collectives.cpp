// Axis: counts a call and passes it to the transport.
#include "orthant/collectives.hpp"

#include <chrono>

namespace orthant {

int64_t Traffic::record(AxisName axis, const char* op, const char* site, int64_t ranks, int64_t scaled_bytes) {
  Entry& e = entries_[{axis, op}];
  e.calls += 1;
  e.scaled_bytes += scaled_bytes;
  e.ranks = ranks;
  CallRecord& r = ring_[static_cast<size_t>(next_ % ring_size)];
  r = {next_, axis, op, site, ranks > 0 ? scaled_bytes / ranks : 0, false};
  return next_++;
}

void Traffic::finished(int64_t sequence, double seconds) {
  CallRecord& r = ring_[static_cast<size_t>(sequence % ring_size)];
  if (r.sequence == sequence) {
    r.finished = true;
    waited_[r.axis] += seconds;
  }
}

std::vector<CallRecord> Traffic::ring() const {
  std::vector<CallRecord> out;
  for (int64_t s = std::max<int64_t>(0, next_ - ring_size); s < next_; ++s) out.push_back(ring_[static_cast<size_t>(s % ring_size)]);
  return out;
}

double Traffic::take_seconds(AxisName axis) {
  double s = waited_[axis];
  waited_[axis] = 0;
  return s;
}

Pending Axis::counted(const char* op, const char* site, int64_t scaled_bytes, Pending pending) const {
  int64_t sequence = traffic_->record(name_, op, site, size_, scaled_bytes);
  auto shared = std::make_shared<Pending>(std::move(pending));
  Pending timed([traffic = traffic_, sequence, shared] {
    auto begin = std::chrono::steady_clock::now();
    shared->wait();
    traffic->finished(sequence, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  });
  if (!traffic_->overlap) timed.wait();
  return timed;
}

Pending Axis::gather(const Tensor& shard, const Tensor& whole, const char* site) const {
  ORTHANT_ENSURE(whole.size() == shard.size() * size_ && whole.dtype() == shard.dtype(), "gather: whole is not n shards");
  return counted("all_gather", site, (size_ - 1) * whole.bytes(), transport_->gather(shard, whole));
}

Pending Axis::scatter_sum(const Tensor& whole, const Tensor& shard, const char* site) const {
  ORTHANT_ENSURE(whole.size() == shard.size() * size_ && whole.dtype() == shard.dtype(), "scatter_sum: whole is not n shards");
  return counted("reduce_scatter", site, (size_ - 1) * whole.bytes(), transport_->scatter_sum(whole, shard));
}

Pending Axis::sum(const Tensor& x, const char* site) const {
  return counted("all_reduce", site, 2 * (size_ - 1) * x.bytes(), transport_->sum(x));
}

Pending Axis::max(const Tensor& x, const char* site) const {
  return counted("all_reduce", site, 2 * (size_ - 1) * x.bytes(), transport_->max(x));
}

Pending Axis::shift(const Tensor& sent, const Tensor& received, int by, const char* site) const {
  return counted("shift", site, size_ > 1 ? size_ * sent.bytes() : 0, transport_->shift(sent, received, by));
}

Pending Axis::exchange(const Tensor& sent, const std::vector<int64_t>& send_rows, const Tensor& received,
                       const std::vector<int64_t>& receive_rows, const char* site) const {
  ORTHANT_ENSURE(static_cast<int>(send_rows.size()) == size_ && static_cast<int>(receive_rows.size()) == size_, "exchange: one count a rank");
  int64_t others = 0;
  for (int r = 0; r < size_; ++r)
    if (r != rank_) others += send_rows[static_cast<size_t>(r)];
  return counted("exchange", site, size_ * others * sent.cols() * size_of(sent.dtype()), transport_->exchange(sent, send_rows, received, receive_rows));
}

Axes::Axes(Backend& backend, const Mesh& mesh) {
  for (int i = 0; i < axis_names; ++i) {
    auto name = static_cast<AxisName>(i);
    axes_[static_cast<size_t>(i)] = std::make_unique<Axis>(name, mesh.size(name), mesh.coordinate(name), make_mpi_transport(backend, mesh.comm(name)), traffic_);
  }
}

Axes::Axes(const MeshShape& shape, const Coordinates& at) {
  int64_t group = shape.kv_heads > 0 && shape.tp > shape.kv_heads ? shape.tp / shape.kv_heads : 1;
  const int64_t sizes[axis_names] = {shape.tp, shape.cp, shape.pp, shape.dp, 1, group};
  const int64_t ranks[axis_names] = {at.tp, at.cp, at.pp, at.dp, 0, at.tp % group};
  for (int i = 0; i < axis_names; ++i)
    axes_[static_cast<size_t>(i)] = std::make_unique<Axis>(static_cast<AxisName>(i), static_cast<int>(sizes[i]), static_cast<int>(ranks[i]), make_counting_transport(), traffic_);
}

}  // namespace orthant
