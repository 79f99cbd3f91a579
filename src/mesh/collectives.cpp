// Axis: counts a call and passes it to the transport.
#include "orthant/collectives.hpp"

#include <algorithm>

#include "mesh/transports.hpp"
#include "orthant/error.hpp"
#include "support/trace.hpp"

namespace orthant {

void Pending::abandon() {
  static auto* kept = new std::vector<std::function<void()>>;  // never destroyed: MPI may write until the end
  kept->push_back(std::move(finish_));
  drop();
}

int64_t Traffic::record(AxisName axis, const char* op, const char* site, int64_t ranks, int64_t scaled_bytes) {
  Entry& e = entries_[{axis, op}];
  e.calls += 1;
  e.scaled_bytes += scaled_bytes;
  e.ranks = ranks;
  return note(axis, op, site, ranks > 0 ? scaled_bytes / ranks : 0);
}

int64_t Traffic::note(AxisName axis, const char* op, const char* site, int64_t bytes) {
  const std::lock_guard guard(ring_lock_);
  CallRecord& r = ring_[static_cast<size_t>(next_ % ring_size)];
  r = {next_, ++numbers_[static_cast<size_t>(axis)], axis, op, site, bytes, false, false};
  return next_++;
}

void Traffic::waiting(int64_t sequence) {
  const std::lock_guard guard(ring_lock_);
  CallRecord& r = ring_[static_cast<size_t>(sequence % ring_size)];
  if (r.sequence == sequence) r.waiting = true;
}

void Traffic::finished(AxisName axis, int64_t sequence, double seconds) {
  const std::lock_guard guard(ring_lock_);
  waited_[axis] += seconds;  // also of a call that the ring has forgotten by now
  CallRecord& r = ring_[static_cast<size_t>(sequence % ring_size)];
  if (r.sequence == sequence) {
    r.finished = true;
    r.waiting = false;
  }
}

std::vector<CallRecord> Traffic::ring() const {
  const std::lock_guard guard(ring_lock_);
  std::vector<CallRecord> out;
  for (int64_t s = std::max<int64_t>(0, next_ - ring_size); s < next_; ++s) out.push_back(ring_[static_cast<size_t>(s % ring_size)]);
  return out;
}

double Traffic::take_seconds(AxisName axis) {
  double s = waited_[axis];
  waited_[axis] = 0;
  return s;
}

double Traffic::take_under_way(AxisName axis) {
  double s = under_way_[axis];
  under_way_[axis] = 0;
  return s;
}

Pending Axis::timed(int64_t sequence, const char* op, const char* site, int64_t bytes, Pending pending) const {
  auto shared = std::make_shared<Pending>(std::move(pending));
  const int64_t played = transport_->called_ns(), called = played ? played : Trace::now_ns();
  if (traffic_->trace) traffic_->trace->call(sequence, name_, op, site, bytes, called);
  auto finish = [traffic = traffic_, transport = transport_.get(), sequence, shared, name = name_, called] {
    transport->catch_up();
    const int64_t begin = Trace::now_ns();
    traffic->waiting(sequence);
    shared->wait();
    const int64_t end = Trace::now_ns();
    traffic->finished(name, sequence, static_cast<double>(end - begin) * 1e-9);
    const int64_t arrived = transport->arrived_ns();
    traffic->add_under_way(name, static_cast<double>(std::max<int64_t>(0, (arrived ? arrived : end) - called)) * 1e-9);
    if (traffic->trace) traffic->trace->arrived(sequence, begin, end, arrived);
  };
  return Pending(finish, [shared] { return shared->done(); });
}

Pending Axis::counted(const char* op, const char* site, int64_t scaled_bytes, Pending pending) const {
  Pending call = timed(traffic_->record(name_, op, site, size_, scaled_bytes), op, site, scaled_bytes / size_, std::move(pending));
  if (!traffic_->overlap) call.wait();
  return call;
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
  return exchange_as("exchange", sent, send_rows, received, receive_rows, site);
}

Pending Axis::exchange_as(const char* op, const Tensor& sent, const std::vector<int64_t>& send_rows, const Tensor& received, const std::vector<int64_t>& receive_rows,
                          const char* site) const {
  ORTHANT_ENSURE(static_cast<int>(send_rows.size()) == size_ && static_cast<int>(receive_rows.size()) == size_, "exchange: one count a rank");
  int64_t others = 0;
  for (int r = 0; r < size_; ++r)
    if (r != rank_) others += send_rows[static_cast<size_t>(r)];
  return counted(op, site, size_ * others * sent.cols() * size_of(sent.dtype()), transport_->exchange(sent, send_rows, received, receive_rows));
}

void Axis::check_parts(const Tensor& shard, const Tensor& whole, const std::vector<int64_t>& counts) const {
  ORTHANT_ENSURE(static_cast<int>(counts.size()) == size_, "unequal parts: one count a rank");
  int64_t sum = 0;
  for (int64_t c : counts) {
    ORTHANT_ENSURE(c >= 0, "unequal parts: a count below 0");
    sum += c;
  }
  ORTHANT_ENSURE(whole.size() == sum && shard.size() == counts[static_cast<size_t>(rank_)] && whole.dtype() == shard.dtype(),
                 "unequal parts: the tensors do not have the sizes of the counts");
}

Pending Axis::gather_parts(const Tensor& shard, const Tensor& whole, const std::vector<int64_t>& counts, const char* site) const {
  check_parts(shard, whole, counts);
  // the own part is passed on n - 1 times; over all ranks that makes the ring's (n - 1) x whole
  return counted("all_gather", site, size_ * (size_ - 1) * shard.bytes(), transport_->gather_parts(shard, whole, counts));
}

Pending Axis::scatter_sum_parts(const Tensor& whole, const Tensor& shard, const std::vector<int64_t>& counts, const char* site) const {
  check_parts(shard, whole, counts);
  return counted("reduce_scatter", site, size_ * (whole.bytes() - shard.bytes()), transport_->scatter_sum_parts(whole, shard, counts));
}

Pending Axis::send(const Tensor& x, int to, int tag, const char* site) const {
  ORTHANT_ENSURE(to >= 0 && to < size_ && to != rank_, "send: to no other rank of the axis");
  const int64_t sequence = traffic_->record(name_, "shift", site, size_, size_ * x.bytes());
  return timed(sequence, "send", site, x.bytes(), transport_->send(x, to, tag));
}

Pending Axis::receive(const Tensor& x, int from, int tag, const char* site) const {
  ORTHANT_ENSURE(from >= 0 && from < size_ && from != rank_, "receive: from no other rank of the axis");
  const int64_t sequence = traffic_->note(name_, "receive", site, x.bytes());
  return timed(sequence, "receive", site, x.bytes(), transport_->receive(x, from, tag));
}

Axes::Axes(Backend& backend, const Mesh& mesh, const std::string& transport, const std::string& gpu_aware)
    : transports_(std::make_unique<Transports>(backend, mesh.cart(), transport, gpu_aware)) {
  for (int i = 0; i < axis_names; ++i) {
    auto name = static_cast<AxisName>(i);
    axes_[static_cast<size_t>(i)] = std::make_unique<Axis>(name, mesh.size(name), mesh.coordinate(name), transports_->make(mesh.comm(name), name), traffic_);
  }
}

Axes::~Axes() = default;

bool Axes::on_device() const { return transports_ && transports_->on_device(); }
std::string Axes::transport() const { return transports_ ? transports_->text() : ""; }

Axes::Axes(Backend& backend, const Mesh& mesh, double sleep_seconds_per_byte, std::shared_ptr<WorkClock> clock) {
  ORTHANT_ENSURE(backend.name() == "meta", "only the backend meta can do without the numbers of other ranks");
  ORTHANT_ENSURE(sleep_seconds_per_byte >= 0, "a wire that delivers before it is given");
  if (mesh.nodes() > 1)
    throw UsageError("run.timing = \"sleep\" compares the clocks of its ranks and needs all of them on one node, not on " +
                         std::to_string(mesh.nodes()), true);
  for (int i = 0; i < axis_names; ++i) {
    auto name = static_cast<AxisName>(i);
    axes_[static_cast<size_t>(i)] = std::make_unique<Axis>(name, mesh.size(name), mesh.coordinate(name), make_sleep_transport(mesh.comm(name), sleep_seconds_per_byte, clock), traffic_);
  }
}

namespace {

/// Size of each axis and the rank's place on it, without a mesh of processes.
struct Places {
  std::array<int64_t, axis_names> sizes, ranks;
};
Places places_of(const MeshShape& shape, const Coordinates& at) {
  const int64_t group = shape.kv_group();
  const bool experts = shape.experts > 0;
  const bool tied = on_tie(shape, at);
  return {{shape.tp, shape.cp, shape.pp, shape.dp, experts ? shape.ep : 1, group, shape.shard_size(), shape.replicas(), tied ? 2 : 1, shape.expert_shard_size(), shape.expert_replicas(), 1},
          {at.tp, at.cp, at.pp, at.dp, experts ? ep_of(shape, at) : 0, at.tp % group, shard_of(shape, at), replica_of(shape, at), tied && at.pp > 0 ? 1 : 0,
           experts ? edp_shard_of(shape, at) : 0, experts ? edp_replica_of(shape, at) : 0, 0}};
}

}  // namespace

Axes::Axes(const MeshShape& shape, const Coordinates& at) {
  const Places places = places_of(shape, at);
  for (size_t i = 0; i < axis_names; ++i)
    axes_[i] = std::make_unique<Axis>(static_cast<AxisName>(i), static_cast<int>(places.sizes[i]), static_cast<int>(places.ranks[i]), make_counting_transport(), traffic_);
}

Axes::Axes(const MeshShape& shape, const Coordinates& at, double seconds_per_byte, std::shared_ptr<WorkClock> clock) {
  const Places places = places_of(shape, at);
  for (size_t i = 0; i < axis_names; ++i) {
    const auto name = static_cast<AxisName>(i);
    const int size = static_cast<int>(places.sizes[i]), rank = static_cast<int>(places.ranks[i]);
    axes_[i] = std::make_unique<Axis>(name, size, rank,
                                      make_played_transport(size, rank, seconds_per_byte, clock, [traffic = traffic_.get(), name](double s) { traffic->add_seconds(name, s); }), traffic_);
  }
}

}  // namespace orthant
