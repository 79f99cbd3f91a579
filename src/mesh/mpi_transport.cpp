// Collectives over MPI point-to-point messages, on host memory.
//
// Sums are made by the receiver: each rank gets every other rank's piece, adds in rank order in fp32 (fp64 for fp64,
// plain integers for exact sums) and rounds once. MPI's own reductions leave the order, and in bf16 the rounding, to
// the library. The bytes on the wire are those of the ring algorithms.
#include <cmath>
#include <cstring>
#include <vector>

#include "orthant/collectives.hpp"
#include "orthant/elementwise.hpp"
#include "support/agree.hpp"

namespace orthant {
namespace {

constexpr int64_t largest_message = int64_t{1} << 30;  // bytes; MPI counts are int, some stacks break near 2^31
constexpr int64_t small_sum = 8192;                    // bytes; below it every rank gathers all and adds by itself

/// Outstanding messages of one call.
class Messages {
 public:
  explicit Messages(MPI_Comm comm) : comm_(comm) {}
  void send(const void* data, int64_t bytes, int to) {
    for (int64_t at = 0; at < bytes; at += largest_message)
      ORTHANT_MPI(MPI_Isend(static_cast<const char*>(data) + at, count(bytes - at), MPI_BYTE, to, 0, comm_, &next()));
  }
  void receive(void* data, int64_t bytes, int from) {
    for (int64_t at = 0; at < bytes; at += largest_message)
      ORTHANT_MPI(MPI_Irecv(static_cast<char*>(data) + at, count(bytes - at), MPI_BYTE, from, 0, comm_, &next()));
  }
  void wait() {
    ORTHANT_MPI(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE));
    requests_.clear();
  }

 private:
  static int count(int64_t bytes) { return static_cast<int>(std::min(bytes, largest_message)); }
  MPI_Request& next() {
    requests_.push_back(MPI_REQUEST_NULL);
    return requests_.back();
  }
  MPI_Comm comm_;
  std::vector<MPI_Request> requests_;
};

template <class T, class Wide, class Load, class Store>
void add_in_order(const std::vector<const void*>& parts, void* out, int64_t n, Load load, Store store) {
  // blocks small enough to stay in cache while the parts are added one after the other
  constexpr int64_t block = 1024;
  Wide sum[block];
  for (int64_t at = 0; at < n; at += block) {
    int64_t count = std::min(block, n - at);
    for (int64_t i = 0; i < count; ++i) sum[i] = load(static_cast<const T*>(parts[0])[at + i]);
    for (size_t r = 1; r < parts.size(); ++r) {
      const T* p = static_cast<const T*>(parts[r]) + at;
      for (int64_t i = 0; i < count; ++i) sum[i] += load(p[i]);
    }
    for (int64_t i = 0; i < count; ++i) static_cast<T*>(out)[at + i] = store(sum[i]);
  }
}

/// out <- parts[0] + parts[1] + ..., in that order; out may be one of the parts.
void sum_parts(DType dtype, const std::vector<const void*>& parts, void* out, int64_t n) {
  auto same = [](auto x) { return x; };
  switch (dtype) {
    case DType::f32: return add_in_order<float, float>(parts, out, n, same, same);
    case DType::f64: return add_in_order<double, double>(parts, out, n, same, same);
    case DType::i64: return add_in_order<int64_t, int64_t>(parts, out, n, same, same);
    case DType::bf16:
      return add_in_order<bf16, float>(parts, out, n, [](bf16 x) { return to_float(x); }, [](float x) { return to_bf16(x); });
    default: throw LogicError(std::string("sum of ") + name_of(dtype) + " over ranks");
  }
}

template <class T>
void max_parts(const std::vector<const void*>& parts, void* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    T m = static_cast<const T*>(parts[0])[i];
    for (size_t r = 1; r < parts.size(); ++r) {
      T x = static_cast<const T*>(parts[r])[i];
      if (x > m || x != x) m = x;  // a NaN stays
    }
    static_cast<T*>(out)[i] = m;
  }
}

class MpiTransport : public Transport {
 public:
  MpiTransport(Backend& backend, MPI_Comm comm) : backend_(backend), comm_(comm) {
    ORTHANT_MPI(MPI_Comm_size(comm, &size_));
    ORTHANT_MPI(MPI_Comm_rank(comm, &rank_));
  }

  Pending gather(const Tensor& shard, const Tensor& whole) override {
    ORTHANT_ENSURE(shard.dense() && whole.dense(), "gather of strided memory");
    if (size_ == 1) {
      if (shard.data() != whole.data()) backend_.copy(whole.reshaped(1, whole.size()), shard.reshaped(1, shard.size()));
      return {};
    }
    auto* from = static_cast<char*>(backend_.host_begin(shard));
    auto* to = static_cast<char*>(backend_.host_begin(whole));
    auto messages = std::make_shared<Messages>(comm_);
    int64_t bytes = shard.bytes();
    for (int r = 0; r < size_; ++r)
      if (r != rank_) messages->receive(to + r * bytes, bytes, r);
    for (int r = 0; r < size_; ++r)
      if (r != rank_) messages->send(from, bytes, r);
    if (to + rank_ * bytes != from) std::memcpy(to + rank_ * bytes, from, static_cast<size_t>(bytes));
    return Pending([this, messages, shard, whole] {
      messages->wait();
      backend_.host_end(whole);
      backend_.host_end(shard);
    });
  }

  Pending scatter_sum(const Tensor& whole, const Tensor& shard) override {
    ORTHANT_ENSURE(shard.dense() && whole.dense(), "scatter_sum of strided memory");
    if (size_ == 1) {
      if (shard.data() != whole.data()) backend_.copy(shard.reshaped(1, shard.size()), whole.reshaped(1, whole.size()));
      return {};
    }
    int64_t n = shard.size(), bytes = shard.bytes();
    Tensor incoming = backend_.alloc(shard.dtype(), size_ - 1, std::max<int64_t>(n, 1), MemoryKind::communication);
    auto* from = static_cast<char*>(backend_.host_begin(whole));
    auto* in = static_cast<char*>(backend_.host_begin(incoming));
    auto messages = std::make_shared<Messages>(comm_);
    std::vector<const void*> parts;
    for (int r = 0, slot = 0; r < size_; ++r) {
      if (r == rank_) {
        parts.push_back(from + rank_ * bytes);
        continue;
      }
      messages->receive(in + slot * bytes, bytes, r);
      parts.push_back(in + slot++ * bytes);
    }
    for (int r = 0; r < size_; ++r)
      if (r != rank_) messages->send(from + r * bytes, bytes, r);
    return Pending([this, messages, whole, shard, incoming, parts, n] {
      messages->wait();
      sum_parts(shard.dtype(), parts, backend_.host_begin(shard), n);
      backend_.host_end(shard);
      backend_.host_end(incoming);
      backend_.host_end(whole);
    });
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
    auto messages = std::make_shared<Messages>(comm_);
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
    return Pending([this, messages, x, incoming, parts, begin = begin, mine = mine, data, width, range] {
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
    });
  }

  Pending max(const Tensor& x) override {
    ORTHANT_ENSURE(x.dense() && (x.dtype() == DType::f32 || x.dtype() == DType::f64), "max of dense f32 or f64");
    if (size_ == 1 || x.size() == 0) return {};
    return gather_all(x, [x](const std::vector<const void*>& parts, void* out) {
      x.dtype() == DType::f32 ? max_parts<float>(parts, out, x.size()) : max_parts<double>(parts, out, x.size());
    });
  }

  Pending shift(const Tensor& sent, const Tensor& received, int by) override {
    ORTHANT_ENSURE(sent.dense() && received.dense() && sent.bytes() == received.bytes(), "shift of equal dense tensors");
    if (size_ == 1) {
      if (sent.data() != received.data()) backend_.copy(received.reshaped(1, received.size()), sent.reshaped(1, sent.size()));
      return {};
    }
    int to = ((rank_ + by) % size_ + size_) % size_, from = ((rank_ - by) % size_ + size_) % size_;
    auto messages = std::make_shared<Messages>(comm_);
    messages->receive(backend_.host_begin(received), received.bytes(), from);
    messages->send(backend_.host_begin(sent), sent.bytes(), to);
    return Pending([this, messages, sent, received] {
      messages->wait();
      backend_.host_end(sent);
      backend_.host_end(received);
    });
  }

  Pending exchange(const Tensor& sent, const std::vector<int64_t>& send_rows, const Tensor& received, const std::vector<int64_t>& receive_rows) override {
    ORTHANT_ENSURE(sent.dense() && received.dense() && sent.cols() == received.cols(), "exchange of dense rows of one width");
    int64_t row = sent.cols() * size_of(sent.dtype());
    auto* from = static_cast<char*>(backend_.host_begin(sent));
    auto* to = static_cast<char*>(backend_.host_begin(received));
    auto messages = std::make_shared<Messages>(comm_);
    char *mine_from = nullptr, *mine_to = nullptr;
    for (int r = 0; r < size_; ++r) {
      int64_t bytes = receive_rows[static_cast<size_t>(r)] * row;
      if (r == rank_) mine_to = to;
      else messages->receive(to, bytes, r);
      to += bytes;
    }
    for (int r = 0; r < size_; ++r) {
      int64_t bytes = send_rows[static_cast<size_t>(r)] * row;
      if (r == rank_) mine_from = from;
      else messages->send(from, bytes, r);
      from += bytes;
    }
    ORTHANT_ENSURE(send_rows[static_cast<size_t>(rank_)] == receive_rows[static_cast<size_t>(rank_)], "exchange: own rows differ");
    if (int64_t own = send_rows[static_cast<size_t>(rank_)] * row) std::memcpy(mine_to, mine_from, static_cast<size_t>(own));
    return Pending([this, messages, sent, received] {
      messages->wait();
      backend_.host_end(sent);
      backend_.host_end(received);
    });
  }

 private:
  /// Every rank gets every part and combines them in rank order.
  Pending gather_all(const Tensor& x, std::function<void(const std::vector<const void*>&, void*)> combine) {
    Tensor incoming = backend_.alloc(x.dtype(), size_ - 1, x.size(), MemoryKind::communication);
    auto* data = static_cast<char*>(backend_.host_begin(x));
    auto* in = static_cast<char*>(backend_.host_begin(incoming));
    auto messages = std::make_shared<Messages>(comm_);
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
    return Pending([this, messages, x, incoming, parts, combine, data] {
      messages->wait();
      combine(parts, data);
      backend_.host_end(incoming);
      backend_.host_end(x);
    });
  }

  Backend& backend_;
  MPI_Comm comm_;
  int size_ = 1, rank_ = 0;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(Backend& backend, MPI_Comm comm) { return std::make_unique<MpiTransport>(backend, comm); }

}  // namespace orthant
