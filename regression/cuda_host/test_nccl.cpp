// Collectives by NCCL: the bits of the MPI transport, messages in any order, calls that do not match, and failed peers.
// ranks: 1 2 4
// seconds: 120
#include <gtest/gtest.h>
#include <mpi.h>

#include <cmath>
#include <cstdlib>
#include <functional>

#include "backends/registry.hpp"
#include "nccl.h"
#include "orthant/elementwise.hpp"

namespace orthant {
namespace {

int world_size() {
  int n = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}

/// All ranks on one axis, each with a device.
struct Line {
  AxisName name;
  std::unique_ptr<Backend> be;
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<Axes> nccl, mpi;

  explicit Line(AxisName axis) : name(axis) {
    setenv("ORTHANT_CUDA_HOST_DEVICES", "4", 1);
    EXPECT_EQ(choose_backend("cuda", MPI_COMM_WORLD).name, "cuda");
    be = make_backend("cuda");
    MeshShape shape;
    (axis == AxisName::pp ? shape.pp : shape.tp) = world_size();
    mesh = std::make_unique<Mesh>(MPI_COMM_WORLD, shape);
    nccl = std::make_unique<Axes>(*be, *mesh, "nccl");
    mpi = std::make_unique<Axes>(*be, *mesh, "mpi");
    EXPECT_TRUE(nccl->on_device());
    EXPECT_FALSE(mpi->on_device());
  }
  int rank() const { return (*nccl)[name].rank(); }
  /// Numbers of many magnitudes, so that the order of a sum shows in its last bits.
  Tensor numbers(DType t, int64_t n, int salt) {
    const Tensor wide = be->alloc(DType::f64, 1, n, MemoryKind::workspace);
    {
      Host<double> h(*be, wide);
      for (int64_t i = 0; i < n; ++i)
        h[i] = std::sin(static_cast<double>(i * 13 + salt * 77 + rank() * 1009 + 1)) * std::ldexp(1.0, static_cast<int>((i * 7 + rank() * 11) % 24));
    }
    if (t == DType::i64) {
      const Tensor x = be->alloc(t, 1, n, MemoryKind::workspace);
      Host<double> h(*be, wide);
      Host<int64_t> out(*be, x);
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int64_t>(h[i] * 1e12);
      return x;
    }
    const Tensor x = be->alloc(t, 1, n, MemoryKind::workspace);
    be->copy(x, wide);
    return x;
  }
  std::vector<char> bytes(const Tensor& x) {
    auto* p = static_cast<char*>(be->host_begin(x));
    std::vector<char> out(p, p + x.bytes());
    be->host_end(x);
    return out;
  }
  Tensor twin(const Tensor& x) {
    const Tensor y = be->alloc(x.dtype(), x.rows(), x.cols(), MemoryKind::workspace);
    be->copy(y, x);
    return y;
  }
};

TEST(Nccl, EveryCallHasTheBitsOfMpi) {
  Line line(AxisName::tp);
  const Axis &a = (*line.nccl)[AxisName::tp], &b = (*line.mpi)[AxisName::tp];
  const int n = world_size();
  int wrong = 0;
  for (DType t : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64})
    for (int64_t size : {1, 7, 1024, 2049, 4097}) {
      const auto same = [&](const char* what, const Tensor& x, const Tensor& y) {
        const bool equal = line.bytes(x) == line.bytes(y);
        wrong += !equal;
        EXPECT_TRUE(equal) << what << " of " << size << " " << name_of(t);
      };
      const Tensor x = line.numbers(t, size, 1), y = line.twin(x);
      Pending first = a.sum(x, "test");
      b.sum(y, "test").wait();
      first.wait();
      same("sum", x, y);
      const Tensor whole = line.numbers(t, size * n, 2), part1 = line.numbers(t, size, 3), part2 = line.twin(part1);
      a.scatter_sum(whole, part1, "test").wait();
      b.scatter_sum(whole, part2, "test").wait();
      same("scatter_sum", part1, part2);
      const Tensor all1 = line.numbers(t, size * n, 4), all2 = line.twin(all1);
      a.gather(part1, all1, "test").wait();
      b.gather(part2, all2, "test").wait();
      same("gather", all1, all2);
      // in place: the own part is already where it belongs
      const Tensor place1 = all1.reshaped(n, size), place2 = all2.reshaped(n, size);
      a.gather(place1.row_range(a.rank(), 1), place1, "test").wait();
      b.gather(place2.row_range(b.rank(), 1), place2, "test").wait();
      same("gather in place", place1, place2);
      a.scatter_sum(place1, place1.row_range(a.rank(), 1), "test").wait();
      b.scatter_sum(place2, place2.row_range(b.rank(), 1), "test").wait();
      same("scatter_sum in place", place1.row_range(a.rank(), 1), place2.row_range(b.rank(), 1));
      std::vector<int64_t> counts;
      int64_t total = 0;
      for (int r = 0; r < n; ++r) total += counts.emplace_back(r == 0 ? 0 : size + r);
      const int64_t mine = counts[static_cast<size_t>(a.rank())];
      const Tensor shard = line.numbers(t, mine, 5), uneven1 = line.numbers(t, total, 6), uneven2 = line.twin(uneven1);
      a.gather_parts(shard, uneven1, counts, "test").wait();
      b.gather_parts(shard, uneven2, counts, "test").wait();
      same("gather_parts", uneven1, uneven2);
      const Tensor cut1 = line.numbers(t, mine, 7), cut2 = line.twin(cut1);
      a.scatter_sum_parts(uneven1, cut1, counts, "test").wait();
      b.scatter_sum_parts(uneven2, cut2, counts, "test").wait();
      same("scatter_sum_parts", cut1, cut2);
      const Tensor moved1 = line.numbers(t, size, 8), moved2 = line.twin(moved1);
      a.shift(part1, moved1, -1, "test").wait();
      b.shift(part2, moved2, -1, "test").wait();
      same("shift", moved1, moved2);
      // rank s sends s + r rows to rank r
      std::vector<int64_t> to, from;
      int64_t out = 0, in = 0;
      for (int r = 0; r < n; ++r) {
        out += to.emplace_back(a.rank() + r);
        in += from.emplace_back(a.rank() + r);
      }
      const Tensor rows = line.numbers(t, out * 3, 9).reshaped(out, 3), got1 = line.numbers(t, in * 3, 10).reshaped(in, 3), got2 = line.twin(got1);
      a.exchange(rows, to, got1, from, "test").wait();
      b.exchange(rows, to, got2, from, "test").wait();
      same("exchange", got1, got2);
      if (t == DType::f32 || t == DType::f64) {
        const Tensor m1 = line.numbers(t, size, 11), m2 = line.twin(m1);
        a.max(m1, "test").wait();
        b.max(m2, "test").wait();
        same("max", m1, m2);
      }
    }
  EXPECT_EQ(wrong, 0);
}

TEST(Nccl, RanksThatFirstSendToEachOtherDoNotHang) {
  Line line(AxisName::pp);
  const Axis& axis = (*line.nccl)[AxisName::pp];
  const int n = axis.size();
  if (n == 1) return;
  host_stand_in::set_patience(30);
  const int next = (axis.rank() + 1) % n, before = (axis.rank() + n - 1) % n;
  // both ways round the ring at once, and the messages of one direction are asked for in another order than they were sent
  std::vector<Pending> pending;
  std::vector<Tensor> sent, got;
  for (int tag : {3, 5, 4}) {
    for (int to : {next, before}) {
      const Tensor x = line.be->alloc(DType::f32, 1, 5000, MemoryKind::workspace);
      {
        Host<float> h(*line.be, x);
        for (int64_t i = 0; i < x.size(); ++i) h[i] = static_cast<float>(1000 * axis.rank() + 100 * to + tag);
      }
      sent.push_back(x);
      pending.push_back(axis.send(x, to, tag + (to == before ? 10 : 0), "test"));
    }
  }
  std::vector<float> want;
  for (int tag : {4, 3, 5})
    for (int from : {before, next}) {
      got.push_back(line.be->alloc(DType::f32, 1, 5000, MemoryKind::workspace));
      pending.push_back(axis.receive(got.back(), from, tag + (from == next ? 10 : 0), "test"));
      want.push_back(static_cast<float>(1000 * from + 100 * axis.rank() + tag));
      if (tag == 3) pending.back().wait();  // one is waited for while others stand open
    }
  for (Pending& p : pending) p.wait();
  for (size_t i = 0; i < got.size(); ++i) {
    Host<float> h(*line.be, got[i]);
    EXPECT_EQ(h[0], want[i]) << i;
    EXPECT_EQ(h[4999], want[i]) << i;
  }
}

/// Both neighbours send before they receive, small and large messages in turn (the stand-in's sends are all synchronous).
TEST(Nccl, NeighboursThatFirstSendAreServedInEverySize) {
  Line line(AxisName::pp);
  const Axis& axis = (*line.nccl)[AxisName::pp];
  const int n = axis.size();
  if (n == 1) return;
  host_stand_in::set_patience(60);
  const int next = (axis.rank() + 1) % n, before = (axis.rank() + n - 1) % n;
  std::vector<Pending> sends;
  std::vector<Tensor> got;
  const std::vector<int64_t> sizes = {1 << 10, 16 << 20, 64 << 10, 1 << 20, 1 << 10};  // bytes
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Tensor x = line.be->alloc(DType::f32, 1, sizes[i] / 4, MemoryKind::workspace);
    line.be->zero(x);
    {
      const Tensor end = x.reshaped(x.size(), 1).row_range(x.size() - 1, 1);
      Host<float> h(*line.be, end);
      h[0] = static_cast<float>(10 * axis.rank() + static_cast<int>(i));
    }
    sends.push_back(axis.send(x, next, static_cast<int>(i), "test"));
    if (n > 2) sends.push_back(axis.send(x, before, static_cast<int>(i) + 100, "test"));
  }
  for (size_t i = 0; i < sizes.size(); ++i)
    for (int from : n > 2 ? std::vector<int>{before, next} : std::vector<int>{next}) {
      const Tensor x = line.be->alloc(DType::f32, sizes[i] / 4, 1, MemoryKind::workspace);
      axis.receive(x, from, static_cast<int>(i) + (n > 2 && from == next ? 100 : 0), "test").wait();
      Host<float> h(*line.be, x.row_range(x.rows() - 1, 1));
      EXPECT_EQ(h[0], static_cast<float>(10 * from + static_cast<int>(i))) << sizes[i] << " bytes";
    }
  for (Pending& p : sends) p.wait();
}

TEST(Nccl, ATensorThatIsNotWaitedForIsNotSeenAsItWillBe) {
  Line line(AxisName::tp);
  const Axis& axis = (*line.nccl)[AxisName::tp];
  if (axis.size() == 1) return;
  const Tensor x = line.numbers(DType::f32, 4000, 1), copy = line.be->alloc(DType::f32, 1, 4000, MemoryKind::workspace);
  const std::vector<char> old = line.bytes(x);
  Pending p = axis.sum(x, "test");
  line.be->copy(copy, x);  // a mistake: the compute stream has not been told to wait
  const std::vector<char> seen = line.bytes(copy);  // of a sum in two rounds the first may have written
  p.wait();
  EXPECT_NE(line.bytes(x), old);
  EXPECT_NE(line.bytes(x), seen);
  EXPECT_TRUE(p.done());

  const Tensor whole = line.numbers(DType::f32, 4000 * axis.size(), 2), early = line.be->alloc(DType::f32, 1, whole.size(), MemoryKind::workspace);
  const std::vector<char> before = line.bytes(whole);
  Pending gathered = axis.gather(x, whole, "test");
  line.be->copy(early, whole.reshaped(1, whole.size()));
  EXPECT_EQ(line.bytes(early), before);
  gathered.wait();
  EXPECT_NE(line.bytes(whole), before);
}

/// What the stand-in says on this rank when rank 1 makes `odd` and everybody else `even`, calls that meet on all ranks.
std::string refusal(const std::function<void(Line&)>& even, const std::function<void(Line&)>& odd) {
  struct Thrown {
    Thrown() { host_stand_in::throw_refusals(true); }
    ~Thrown() { host_stand_in::throw_refusals(false); }
  } thrown;
  std::string text;
  try {
    Line line(AxisName::tp);  // inside: communicators are given up while the refusal passes
    (line.rank() == 1 ? odd : even)(line);
    line.be->synchronize();
  } catch (const host_stand_in::Refusal& e) {
    text = e.what();
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return text;
}

TEST(Nccl, TheStandInNamesCallsThatDoNotMatch) {
  if (world_size() == 1) return;
  const auto gather = [](DType type, int64_t elements) {
    return [=](Line& line) {
      const Tensor shard = line.be->alloc(type, 1, elements, MemoryKind::workspace), whole = line.be->alloc(type, world_size(), elements, MemoryKind::workspace);
      line.be->zero(shard);
      (*line.nccl)[AxisName::tp].gather(shard, whole, "test").wait();
    };
  };
  const auto exchange = [](Line& line) {
    const int n = world_size();
    const Tensor x = line.be->alloc(DType::f32, n, 8, MemoryKind::workspace), y = line.be->alloc(DType::f32, n, 8, MemoryKind::workspace);
    line.be->zero(x);
    (*line.nccl)[AxisName::tp].exchange(x, std::vector<int64_t>(static_cast<size_t>(n), 1), y, std::vector<int64_t>(static_cast<size_t>(n), 1), "test").wait();
  };
  const auto then = [](std::function<void(Line&)> a, std::function<void(Line&)> b) {
    return [a, b](Line& line) {
      a(line);
      b(line);
    };
  };
  struct Case {
    const char* what;
    std::function<void(Line&)> even, odd;
    std::string theirs, mine;  // as rank 0 has it
  };
  const std::vector<Case> cases = {
      {"count", gather(DType::f32, 8), gather(DType::f32, 9), "all-gather of 9 of type 7", "all-gather of 8 of type 7"},
      {"type", gather(DType::f32, 8), gather(DType::bf16, 8), "all-gather of 8 of type 9", "all-gather of 8 of type 7"},
      {"order", then(exchange, gather(DType::f32, 8)), then(gather(DType::f32, 8), exchange), "all-gather of 8 of type 7", "send of 8 of type 7"},
  };
  for (const Case& c : cases) {
    const std::string text = refusal(c.even, c.odd);
    EXPECT_NE(text.find("NCCL calls do not match"), std::string::npos) << c.what << ": " << text;
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    EXPECT_NE(text.find(c.theirs), std::string::npos) << text;
    EXPECT_NE(text.find(c.mine), std::string::npos) << text;
  }
  EXPECT_EQ(refusal(gather(DType::f32, 8), gather(DType::f32, 8)), "");
}

TEST(Nccl, AFailedPeerIsAFaultThatNamesAxisAndCall) {  // the last test: NCCL stays broken
  Line line(AxisName::tp);
  const Axis& axis = (*line.nccl)[AxisName::tp];
  if (axis.size() == 1) return;
  const Tensor x = line.numbers(DType::f32, 4000, 1);
  line.be->synchronize();
  if (axis.rank() > 0) host_stand_in::break_nccl();  // these never come
  try {
    axis.sum(x, "test").wait();
    host_stand_in::break_nccl();
    line.be->synchronize();
    FAIL() << "the wait for ranks that never come has ended";
  } catch (const FaultError& e) {
    const std::string text = e.what();
    for (const char* part : {"axis tp", "in sum", "remote process exited"}) EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace orthant
