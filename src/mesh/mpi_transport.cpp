// Collectives over MPI point-to-point messages, on host memory; with an MPI that takes device memory, calls that only move
// go without the copies.
//
// Sums are made by the receiver: each rank gets every other rank's piece, adds in rank order in fp32 (fp64 for fp64,
// plain integers for exact sums) and rounds once. MPI's own reductions leave the order, and in bf16 the rounding, to
// the library. The bytes on the wire are those of the ring algorithms.
//
// ORTHANT_SYNCHRONOUS_SENDS = 1 in the environment, read when a transport is made, sends with MPI_Issend: with it a
// run shows that nobody relies on MPI's buffers (messages.hpp).
#include <cstring>
#include <utility>
#include <vector>

#include "mesh/messages.hpp"
#include "mesh/sum_parts.hpp"
#include "orthant/collectives.hpp"

namespace orthant {
namespace {

constexpr int64_t small_sum = 8192;  // bytes; below it every rank gathers all and adds by itself

class MpiTransport : public Transport {
 public:
  MpiTransport(Backend& backend, MPI_Comm comm, bool gpu_aware)
      : backend_(backend), comm_(comm), synchronous_(synchronous_sends()), gpu_aware_(gpu_aware) {
    ORTHANT_MPI(MPI_Comm_size(comm, &size_));
    ORTHANT_MPI(MPI_Comm_rank(comm, &rank_));
  }

  Pending gather(const Tensor& shard, const Tensor& whole) override {
    return gather_parts(shard, whole, std::vector<int64_t>(static_cast<size_t>(size_), shard.size()));
  }
  Pending scatter_sum(const Tensor& whole, const Tensor& shard) override {
    return scatter_sum_parts(whole, shard, std::vector<int64_t>(static_cast<size_t>(size_), shard.size()));
  }

  Pending gather_parts(const Tensor& shard, const Tensor& whole, const std::vector<int64_t>& counts) override {
    ORTHANT_ENSURE(shard.dense() && whole.dense(), "gather of strided memory");
    if (size_ == 1) return copied(shard, whole);
    const auto [from, to] = open(shard, whole);
    auto messages = outstanding();
    int64_t width = size_of(whole.dtype()), bytes = shard.bytes(), at = 0, own = 0;
    for (int r = 0; r < size_; ++r) {
      int64_t part = counts[static_cast<size_t>(r)] * width;
      if (r == rank_) own = at;
      else messages->receive(to + at, part, r);
      at += part;
    }
    for (int r = 0; r < size_; ++r)
      if (r != rank_) messages->send(from, bytes, r);
    carry(shard, from, 0, whole, to, own, bytes);
    return pending(messages, {whole, shard});
  }

  Pending scatter_sum_parts(const Tensor& whole, const Tensor& shard, const std::vector<int64_t>& counts) override {
    ORTHANT_ENSURE(shard.dense() && whole.dense(), "scatter_sum of strided memory");
    if (size_ == 1) return copied(whole, shard);
    int64_t n = shard.size(), width = size_of(shard.dtype()), bytes = shard.bytes();
    Tensor incoming = backend_.alloc(shard.dtype(), size_ - 1, std::max<int64_t>(n, 1), MemoryKind::communication);
    auto* from = static_cast<char*>(backend_.host_begin(whole));
    auto* in = static_cast<char*>(backend_.host_begin(incoming));
    auto messages = outstanding();
    std::vector<const void*> parts(static_cast<size_t>(size_));
    for (int r = 0, slot = 0; r < size_; ++r) {
      if (r == rank_) continue;
      messages->receive(in + slot * bytes, bytes, r);
      parts[static_cast<size_t>(r)] = in + slot++ * bytes;
    }
    for (int r = 0; r < size_; ++r) {
      int64_t part = counts[static_cast<size_t>(r)] * width;
      if (r == rank_) parts[static_cast<size_t>(r)] = from;
      else messages->send(from, part, r);
      from += part;
    }
    auto finish = [this, messages, whole, shard, incoming, parts, n] {
      messages->wait();
      sum_parts(shard.dtype(), parts, backend_.host_begin(shard), n);
      backend_.host_end(shard);
      backend_.host_end(incoming);
      backend_.host_end(whole);
    };
    return Pending(finish, [messages] { return messages->test(); });
  }

  Pending sum(const Tensor& x) override {
    ORTHANT_ENSURE(x.dense(), "sum of strided memory");
    if (size_ == 1 || x.size() == 0) return {};
    if (x.bytes() <= small_sum) return gather_all(x, [dtype = x.dtype(), n = x.size()](const std::vector<const void*>& parts, void* out) { sum_parts(dtype, parts, out, n); });
    // Reduce-scatter in pieces of ceil(S / n), then all-gather of the sums.
    int64_t n = x.size(), piece = (n + size_ - 1) / size_, width = size_of(x.dtype());
    auto range = [n, piece](int r) {
      int64_t begin = std::min<int64_t>(n, r * piece);
      return std::pair<int64_t, int64_t>(begin, std::min<int64_t>(n, begin + piece) - begin);
    };
    auto [begin, mine] = range(rank_);
    Tensor incoming = backend_.alloc(x.dtype(), size_ - 1, std::max<int64_t>(mine, 1), MemoryKind::communication);
    auto* data = static_cast<char*>(backend_.host_begin(x));
    auto* in = static_cast<char*>(backend_.host_begin(incoming));
    auto messages = outstanding();
    std::vector<const void*> parts;
    for (int r = 0, slot = 0; r < size_; ++r) {
      if (r == rank_) {
        parts.push_back(data + begin * width);
        continue;
      }
      messages->receive(in + slot * mine * width, mine * width, r);
      parts.push_back(in + slot++ * mine * width);
    }
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      auto [other, count] = range(r);
      messages->send(data + other * width, count * width, r);
    }
    auto finish = [this, messages, x, incoming, parts, begin = begin, mine = mine, data, width, range] {
      messages->wait();
      sum_parts(x.dtype(), parts, data + begin * width, mine);
      for (int r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        auto [other, count] = range(r);
        messages->receive(data + other * width, count * width, r);
      }
      for (int r = 0; r < size_; ++r)
        if (r != rank_) messages->send(data + begin * width, mine * width, r);
      messages->wait();
      backend_.host_end(incoming);
      backend_.host_end(x);
    };
    return Pending(finish, [messages] {  // the second round is still to come
      messages->test();
      return false;
    });
  }

  Pending max(const Tensor& x) override {
    ORTHANT_ENSURE(x.dense() && (x.dtype() == DType::f32 || x.dtype() == DType::f64), "max of dense f32 or f64");
    if (size_ == 1 || x.size() == 0) return {};
    return gather_all(x, [x](const std::vector<const void*>& parts, void* out) { max_parts(x.dtype(), parts, out, x.size()); });
  }

  Pending shift(const Tensor& sent, const Tensor& received, int by) override {
    ORTHANT_ENSURE(sent.dense() && received.dense() && sent.bytes() == received.bytes(), "shift of equal dense tensors");
    if (size_ == 1) return copied(sent, received);
    int to = ((rank_ + by) % size_ + size_) % size_, from = ((rank_ - by) % size_ + size_) % size_;
    auto messages = outstanding();
    const auto [out, in] = open(sent, received);
    messages->receive(in, received.bytes(), from);
    messages->send(out, sent.bytes(), to);
    return pending(messages, {sent, received});
  }

  Pending exchange(const Tensor& sent, const std::vector<int64_t>& send_rows, const Tensor& received, const std::vector<int64_t>& receive_rows) override {
    ORTHANT_ENSURE(sent.dense() && received.dense() && sent.cols() == received.cols(), "exchange of dense rows of one width");
    int64_t row = sent.cols() * size_of(sent.dtype());
    const auto [from, to] = open(sent, received);
    auto messages = outstanding();
    int64_t out = 0, in = 0, own_out = 0, own_in = 0;
    for (int r = 0; r < size_; ++r) {
      int64_t bytes = receive_rows[static_cast<size_t>(r)] * row;
      if (r == rank_) own_in = in;
      else messages->receive(to + in, bytes, r);
      in += bytes;
    }
    for (int r = 0; r < size_; ++r) {
      int64_t bytes = send_rows[static_cast<size_t>(r)] * row;
      if (r == rank_) own_out = out;
      else messages->send(from + out, bytes, r);
      out += bytes;
    }
    ORTHANT_ENSURE(send_rows[static_cast<size_t>(rank_)] == receive_rows[static_cast<size_t>(rank_)], "exchange: own rows differ");
    carry(sent, from, own_out, received, to, own_in, send_rows[static_cast<size_t>(rank_)] * row);
    return pending(messages, {sent, received});
  }

  Pending send(const Tensor& x, int to, int tag) override {
    ORTHANT_ENSURE(x.dense(), "send of strided memory");
    ORTHANT_ENSURE(to != rank_, "send to the own rank");
    auto messages = outstanding(point_to_point_tag(tag));
    messages->send(open(x), x.bytes(), to);
    return pending(messages, {x});
  }

  Pending receive(const Tensor& x, int from, int tag) override {
    ORTHANT_ENSURE(x.dense(), "receive into strided memory");
    ORTHANT_ENSURE(from != rank_, "receive from the own rank");
    auto messages = outstanding(point_to_point_tag(tag));
    messages->receive(open(x), x.bytes(), from);
    return pending(messages, {x});
  }

 private:
  std::shared_ptr<Messages> outstanding(int tag = collective_tag) const {
    return std::make_shared<Messages>(comm_, synchronous_, tag);
  }

  /// Memory that MPI can take, for tensors that nobody adds to; `pending` gives it back.
  char* open(const Tensor& x) {
    if (!gpu_aware_) return static_cast<char*>(backend_.host_begin(x));
    backend_.synchronize();  // MPI knows nothing of the stream in which the tensor is written, or read for the last time
    return static_cast<char*>(x.data());
  }
  std::pair<char*, char*> open(const Tensor& a, const Tensor& b) {
    char* first = open(a);
    return {first, gpu_aware_ ? static_cast<char*>(b.data()) : open(b)};
  }
  /// The own part of a call: `bytes` from place `at` of one opened tensor to place `to_at` of another.
  void carry(const Tensor& from, const char* from_data, int64_t at, const Tensor& to, char* to_data, int64_t to_at, int64_t bytes) {
    if (bytes == 0 || to_data + to_at == from_data + at) return;
    if (!gpu_aware_) {
      std::memcpy(to_data + to_at, from_data + at, static_cast<size_t>(bytes));
      return;
    }
    const int64_t width = size_of(from.dtype()), n = bytes / width;
    const auto part = [n](const Tensor& x, int64_t first) { return x.reshaped(x.size(), 1).row_range(first, n); };
    backend_.copy(part(to, to_at / width), part(from, at / width));
  }

  /// Nothing to do after the messages but to give back the host's view of the tensors.
  Pending pending(const std::shared_ptr<Messages>& messages, std::vector<Tensor> opened) {
    auto finish = [this, messages, opened = std::move(opened)] {
      messages->wait();
      if (gpu_aware_) return;
      for (const Tensor& x : opened) backend_.host_end(x);
    };
    return Pending(finish, [messages] { return messages->test(); });
  }

  /// The call on an axis of one rank.
  Pending copied(const Tensor& from, const Tensor& to) {
    if (from.data() != to.data()) backend_.copy(to.reshaped(1, to.size()), from.reshaped(1, from.size()));
    return {};
  }

  /// Every rank gets every part and combines them in rank order.
  Pending gather_all(const Tensor& x, std::function<void(const std::vector<const void*>&, void*)> combine) {
    Tensor incoming = backend_.alloc(x.dtype(), size_ - 1, x.size(), MemoryKind::communication);
    auto* data = static_cast<char*>(backend_.host_begin(x));
    auto* in = static_cast<char*>(backend_.host_begin(incoming));
    auto messages = outstanding();
    std::vector<const void*> parts;
    for (int r = 0, slot = 0; r < size_; ++r) {
      if (r == rank_) {
        parts.push_back(data);
        continue;
      }
      messages->receive(in + slot * x.bytes(), x.bytes(), r);
      parts.push_back(in + slot++ * x.bytes());
    }
    for (int r = 0; r < size_; ++r)
      if (r != rank_) messages->send(data, x.bytes(), r);
    auto finish = [this, messages, x, incoming, parts, combine, data] {
      messages->wait();
      combine(parts, data);
      backend_.host_end(incoming);
      backend_.host_end(x);
    };
    return Pending(finish, [messages] { return messages->test(); });
  }

  Backend& backend_;
  MPI_Comm comm_;
  bool synchronous_, gpu_aware_;
  int size_ = 1, rank_ = 0;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(Backend& backend, MPI_Comm comm, bool gpu_aware) { return std::make_unique<MpiTransport>(backend, comm, gpu_aware); }

}  // namespace orthant
