// See nccl_transport.hpp.
//
// The communicator's stream waits for the compute stream before each call, and `wait` lets the compute stream wait for
// the call: the host is never held up. Tensors stay alive until then, and are freed in the order of the compute stream.
#include "backends/cuda/nccl_transport.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <vector>

#include "backends/cuda/numbers.hpp"
#include "backends/cuda/point_to_point.hpp"
#include "support/agree.hpp"

namespace orthant::cuda {
namespace {

constexpr int64_t small_sum = 8192;  // bytes; below it every rank gathers all and adds by itself

/// out[i] <- part 0 [i] + part 1 [i] + ..., in that order. Parts of `n` elements lie one behind the other, but for the
/// own one.
template <class T, class Wide>
struct SumParts {
  ORTHANT_KERNEL void operator()(int64_t, int64_t i) const {
    Wide sum = value(part(0)[i]);
    for (int r = 1; r < ranks; ++r) sum += value(part(r)[i]);
    out[i] = store<T>(sum);
  }
  ORTHANT_KERNEL static Wide value(T x) {
    if constexpr (std::is_same_v<T, Wide>) return x;  // also integers
    else return load(x);
  }
  ORTHANT_KERNEL const T* part(int r) const { return r == rank ? own : others + (r < rank || !gap ? r : r - 1) * n; }

  const T *own, *others;
  T* out;
  int64_t n;
  int ranks, rank;
  bool gap;  // the others' parts have no room for the own one
};

template <class T>
struct MaxParts {
  ORTHANT_KERNEL void operator()(int64_t, int64_t i) const {
    T most = parts[i];
    for (int r = 1; r < ranks; ++r) {
      const T x = parts[r * n + i];
      if (x > most || x != x) most = x;  // a NaN stays
    }
    out[i] = most;
  }
  const T* parts;
  T* out;
  int64_t n;
  int ranks;
};

class NcclTransport : public Transport {
 public:
  NcclTransport(CudaBackend& backend, NcclParent* parent, MPI_Comm comm, AxisName axis) : backend_(backend) {
    ORTHANT_MPI(MPI_Comm_size(comm, &size_));
    ORTHANT_MPI(MPI_Comm_rank(comm, &rank_));
    if (!parent) return;
    // A split is a call of all ranks: those that are alone, as beside the stages of a tied weight, take part in it.
    const bool messages = axis == AxisName::pp || axis == AxisName::tie;
    int splits[2] = {size_ > 1 ? 1 : 0, messages ? rounds_of(size_) : 0};
    ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, splits, 2, MPI_INT, MPI_MAX, parent->all()));
    const std::string where = std::string("axis ") + name_of(axis);
    std::vector<int> members(static_cast<size_t>(size_));  // their ranks among all
    const int me = parent->rank();
    ORTHANT_MPI(MPI_Allgather(&me, 1, MPI_INT, members.data(), 1, MPI_INT, comm));
    if (splits[0] == 1) {
      const int color = size_ > 1 ? *std::min_element(members.begin(), members.end()) : NcclParent::no_color;
      if (ncclComm_t part = parent->split(color, rank_, where)) channel_ = std::make_unique<Channel>(backend, part, size_, rank_, where);
    }
    if (splits[1] > 0 && size_ > 1) ORTHANT_MPI(MPI_Comm_dup(comm, &notices_));
    for (int round = 0; round < splits[1]; ++round) join_neighbours(*parent, members, round, where);
    if (channel_) watch_ = backend.add_watch([this] { keep_going(); });
  }
  ~NcclTransport() override {
    watch_.reset();
    in_.clear();
    out_.clear();
    channel_.reset();
    if (notices_ != MPI_COMM_NULL && std::uncaught_exceptions() == 0) MPI_Comm_free(&notices_);
  }

  Pending gather(const Tensor& shard, const Tensor& whole) override {
    ORTHANT_ENSURE(shard.dense() && whole.dense(), "gather of strided memory");
    if (size_ == 1) return copied(shard, whole);
    if (shard.size() == 0) return {};
    channel_->after_compute();
    all_gather("all-gather", shard.data(), whole.data(), shard.size(), shard.dtype());
    return pending({shard, whole});
  }

  Pending scatter_sum(const Tensor& whole, const Tensor& shard) override {
    return scatter_sum_parts(whole, shard, std::vector<int64_t>(static_cast<size_t>(size_), shard.size()));
  }

  Pending gather_parts(const Tensor& shard, const Tensor& whole, const std::vector<int64_t>& counts) override {
    ORTHANT_ENSURE(shard.dense() && whole.dense(), "gather of strided memory");
    if (size_ == 1) return copied(shard, whole);
    channel_->after_compute();
    const std::vector<int64_t> mine(static_cast<size_t>(size_), shard.size());
    trade("all-gather of parts", shard, repeated(), mine, whole, offsets(counts), counts);
    move(at(whole, offsets(counts)[static_cast<size_t>(rank_)]), shard.data(), shard.bytes());
    return pending({shard, whole});
  }

  Pending scatter_sum_parts(const Tensor& whole, const Tensor& shard, const std::vector<int64_t>& counts) override {
    ORTHANT_ENSURE(shard.dense() && whole.dense(), "scatter_sum of strided memory");
    if (size_ == 1) return copied(whole, shard);
    const int64_t n = shard.size();
    const Tensor incoming = backend_.alloc(shard.dtype(), size_ - 1, std::max<int64_t>(n, 1), MemoryKind::communication);
    channel_->after_compute();
    trade("reduce-scatter", whole, offsets(counts), counts, incoming, slots(n), std::vector<int64_t>(static_cast<size_t>(size_), n));
    add_parts(shard.dtype(), at(whole, offsets(counts)[static_cast<size_t>(rank_)]), incoming.data(), shard.data(), n, true);
    return pending({whole, shard, incoming});
  }

  Pending sum(const Tensor& x) override {
    ORTHANT_ENSURE(x.dense(), "sum of strided memory");
    if (size_ == 1 || x.size() == 0) return {};
    const int64_t n = x.size();
    if (x.bytes() <= small_sum) {
      const Tensor all = backend_.alloc(x.dtype(), size_, n, MemoryKind::communication);
      channel_->after_compute();
      all_gather("sum", x.data(), all.data(), n, x.dtype());
      add_parts(x.dtype(), at(all, rank_ * n), all.data(), x.data(), n, false);
      return pending({x, all});
    }
    // Reduce-scatter in pieces of ceil(n / ranks), then all-gather of the sums.
    const int64_t piece = (n + size_ - 1) / size_;
    std::vector<int64_t> begin, count;
    for (int r = 0; r < size_; ++r) {
      begin.push_back(std::min(n, r * piece));
      count.push_back(std::min(n, begin.back() + piece) - begin.back());
    }
    const int64_t mine = count[static_cast<size_t>(rank_)];
    const std::vector<int64_t> all_mine(static_cast<size_t>(size_), mine);
    const Tensor incoming = backend_.alloc(x.dtype(), size_ - 1, std::max<int64_t>(mine, 1), MemoryKind::communication);
    void* own = at(x, begin[static_cast<size_t>(rank_)]);
    channel_->after_compute();
    trade("sum", x, begin, count, incoming, slots(mine), all_mine);
    add_parts(x.dtype(), own, incoming.data(), own, mine, true);
    trade("sum", x, std::vector<int64_t>(static_cast<size_t>(size_), begin[static_cast<size_t>(rank_)]), all_mine, x, begin, count);
    return pending({x, incoming});
  }

  Pending max(const Tensor& x) override {
    ORTHANT_ENSURE(x.dense() && (x.dtype() == DType::f32 || x.dtype() == DType::f64), "max of dense f32 or f64");
    if (size_ == 1 || x.size() == 0) return {};
    const int64_t n = x.size();
    const Tensor all = backend_.alloc(x.dtype(), size_, n, MemoryKind::communication);
    channel_->after_compute();
    all_gather("max", x.data(), all.data(), n, x.dtype());
    with_accumulator(x.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      for_cells(channel_->stream(), 1, n, true, MaxParts<T>{all.as<T>(), x.as<T>(), n, size_});
    });
    return pending({x, all});
  }

  Pending shift(const Tensor& sent, const Tensor& received, int by) override {
    ORTHANT_ENSURE(sent.dense() && received.dense() && sent.bytes() == received.bytes(), "shift of equal dense tensors");
    const int to = ((rank_ + by) % size_ + size_) % size_, from = ((rank_ - by) % size_ + size_) % size_;
    if (to == rank_) return copied(sent, received);
    if (sent.size() == 0) return {};
    channel_->after_compute();
    channel_->group("shift", [&] {
      receive_part(received.data(), received.size(), received.dtype(), from);
      send_part(sent.data(), sent.size(), sent.dtype(), to);
    });
    return pending({sent, received});
  }

  Pending exchange(const Tensor& sent, const std::vector<int64_t>& send_rows, const Tensor& received, const std::vector<int64_t>& receive_rows) override {
    ORTHANT_ENSURE(sent.dense() && received.dense() && sent.cols() == received.cols(), "exchange of dense rows of one width");
    const auto own = static_cast<size_t>(rank_);
    ORTHANT_ENSURE(send_rows[own] == receive_rows[own], "exchange: own rows differ");
    const auto scaled = [width = sent.cols()](std::vector<int64_t> rows) {
      for (int64_t& r : rows) r *= width;
      return rows;
    };
    const std::vector<int64_t> out = scaled(send_rows), in = scaled(receive_rows);
    if (channel_) {
      channel_->after_compute();
      trade("exchange", sent, offsets(out), out, received, offsets(in), in);
    }
    move(at(received, offsets(in)[own]), at(sent, offsets(out)[own]), out[own] * size_of(sent.dtype()));
    return channel_ ? pending({sent, received}) : Pending();
  }

  Pending send(const Tensor& x, int to, int tag) override {
    ORTHANT_ENSURE(x.dense(), "send of strided memory");
    const auto it = out_.find(to);
    ORTHANT_ENSURE(it != out_.end(), "send by NCCL to a rank that is no neighbour on pp or tie");
    return it->second->send(x, tag);
  }

  Pending receive(const Tensor& x, int from, int tag) override {
    ORTHANT_ENSURE(x.dense(), "receive into strided memory");
    const auto it = in_.find(from);
    ORTHANT_ENSURE(it != in_.end(), "receive by NCCL from a rank that is no neighbour on pp or tie");
    return it->second->receive(x, tag, [this] { keep_going(); });
  }

 private:
  /// Neighbours of a ring meet in rounds, in each of which a rank meets one of its two at most.
  static int rounds_of(int ranks) { return ranks < 2 ? 0 : ranks == 2 ? 1 : ranks % 2 == 0 ? 2 : 3; }
  /// The round in which `low` meets the rank behind it.
  int round_of(int low) const { return size_ % 2 == 1 && low == size_ - 1 ? 2 : low % 2; }

  /// A channel for each direction between the neighbours that meet in this round. Collective over all ranks of `parent`.
  void join_neighbours(NcclParent& parent, const std::vector<int>& members, int round, const std::string& where) {
    const int before = (rank_ + size_ - 1) % size_;
    int low = -1;  // of the own pair
    if (size_ == 2 && round == 0) low = 0;
    else if (size_ > 2 && round_of(rank_) == round) low = rank_;
    else if (size_ > 2 && round_of(before) == round) low = before;
    const int high = low < 0 ? -1 : (low + 1) % size_, color = low < 0 ? NcclParent::no_color : members[static_cast<size_t>(low)];
    for (const auto& [from, to] : {std::pair(low, high), std::pair(high, low)}) {
      const std::string between = low < 0 ? where : where + " from " + std::to_string(from) + " to " + std::to_string(to);
      ncclComm_t part = parent.split(color, rank_ == from ? 0 : 1, between);
      if (!part) continue;
      auto channel = std::make_unique<Channel>(backend_, part, 2, rank_ == from ? 0 : 1, between);
      if (rank_ == from) out_[to] = std::make_unique<Outbox>(backend_, std::move(channel), notices_, to);
      else in_[from] = std::make_unique<Inbox>(backend_, std::move(channel), notices_, from);
    }
  }

  /// While the host waits: messages of other ranks are taken in, and failures seen.
  void keep_going() {
    if (channel_) channel_->check();
    for (auto& [peer, box] : in_) {
      box->check();
      box->poll();
    }
    for (auto& [peer, box] : out_) box->check();
  }

  static void* at(const Tensor& x, int64_t element) { return static_cast<char*>(x.data()) + element * size_of(x.dtype()); }
  std::vector<int64_t> offsets(const std::vector<int64_t>& counts) const {
    std::vector<int64_t> out(counts.size(), 0);
    for (size_t r = 1; r < counts.size(); ++r) out[r] = out[r - 1] + counts[r - 1];
    return out;
  }
  /// Where the parts of n elements of all others lie, without room for the own one.
  std::vector<int64_t> slots(int64_t n) const {
    std::vector<int64_t> out;
    for (int r = 0; r < size_; ++r) out.push_back((r < rank_ ? r : r - 1) * n);
    return out;
  }
  /// The same part to everybody.
  std::vector<int64_t> repeated() const { return std::vector<int64_t>(static_cast<size_t>(size_), 0); }

  void send_part(const void* data, int64_t n, DType type, int to) {
    ORTHANT_NCCL(ncclSend(data, static_cast<size_t>(n), nccl_type(type), to, channel_->comm(), channel_->stream()));
  }
  void receive_part(void* data, int64_t n, DType type, int from) {
    ORTHANT_NCCL(ncclRecv(data, static_cast<size_t>(n), nccl_type(type), from, channel_->comm(), channel_->stream()));
  }

  /// Parts (begin, count in elements) to and from every other rank; empty ones do not travel.
  void trade(const char* op, const Tensor& from, const std::vector<int64_t>& send_begin, const std::vector<int64_t>& send_count, const Tensor& to,
             const std::vector<int64_t>& receive_begin, const std::vector<int64_t>& receive_count) {
    channel_->group(op, [&] {
      for (int step = 1; step < size_; ++step) {  // every rank begins with another one
        const auto peer_to = static_cast<size_t>((rank_ + step) % size_), peer_from = static_cast<size_t>((rank_ - step + size_) % size_);
        if (send_count[peer_to] > 0) send_part(at(from, send_begin[peer_to]), send_count[peer_to], from.dtype(), static_cast<int>(peer_to));
        if (receive_count[peer_from] > 0)
          receive_part(at(to, receive_begin[peer_from]), receive_count[peer_from], to.dtype(), static_cast<int>(peer_from));
      }
    });
  }

  void all_gather(const char* op, const void* from, void* to, int64_t n, DType type) {
    channel_->group(op, [&] { ORTHANT_NCCL(ncclAllGather(from, to, static_cast<size_t>(n), nccl_type(type), channel_->comm(), channel_->stream())); });
  }

  /// In the channel's stream, or the compute stream of a rank alone.
  void move(void* to, const void* from, int64_t bytes) {
    if (bytes == 0 || to == from) return;
    ORTHANT_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, channel_ ? channel_->stream() : backend_.stream()));
  }

  /// `gap`: `others` has no room for the own part.
  void add_parts(DType type, const void* own, const void* others, void* out, int64_t n, bool gap) {
    const auto run = [&](auto one, auto wide) {
      using T = decltype(one);
      for_cells(channel_->stream(), 1, n, true,
                SumParts<T, decltype(wide)>{static_cast<const T*>(own), static_cast<const T*>(others), static_cast<T*>(out), n, size_, rank_, gap});
    };
    switch (type) {
      case DType::f32: return run(float{}, float{});
      case DType::f64: return run(double{}, double{});
      case DType::i64: return run(int64_t{}, int64_t{});
      case DType::bf16: return run(bf16{}, float{});
      case DType::f16: return run(f16{}, float{});
      default: throw LogicError(std::string("sum of ") + name_of(type) + " over ranks");
    }
  }

  /// The call is complete where the channel's stream stands now.
  Pending pending(std::vector<Tensor> kept) {
    const Mark done(channel_->stream());
    return Pending([this, done, kept = std::move(kept)] { done.hold(backend_.stream()); }, [done] { return done.reached(); });
  }

  /// The call on an axis of one rank.
  Pending copied(const Tensor& from, const Tensor& to) {
    if (from.data() != to.data()) backend_.copy(to.reshaped(1, to.size()), from.reshaped(1, from.size()));
    return {};
  }

  CudaBackend& backend_;
  int size_ = 1, rank_ = 0;
  std::unique_ptr<Channel> channel_;  // none on an axis of one rank
  MPI_Comm notices_ = MPI_COMM_NULL;
  std::map<int, std::unique_ptr<Outbox>> out_;
  std::map<int, std::unique_ptr<Inbox>> in_;
  std::shared_ptr<void> watch_;
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(CudaBackend& backend, NcclParent* parent, MPI_Comm comm, AxisName axis) {
  return std::make_unique<NcclTransport>(backend, parent, comm, axis);
}

}  // namespace orthant::cuda
