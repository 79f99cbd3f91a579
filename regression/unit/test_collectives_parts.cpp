// Unequal parts, and tensors from rank to rank, on sends that MPI does not buffer.
// ranks: 1 2 4
// labels: smoke asan
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "mesh_kit.hpp"
#include "orthant/elementwise.hpp"
#include "orthant/error.hpp"

namespace orthant {
namespace {

using namespace kit;

struct Line {  // all ranks on pp, synchronous sends
  Line() {
    setenv("ORTHANT_SYNCHRONOUS_SENDS", "1", 1);  // read when the transports are made
    axes = std::make_unique<Axes>(*be, mesh);
    unsetenv("ORTHANT_SYNCHRONOUS_SENDS");
  }
  std::unique_ptr<Backend> be = make_backend("debug");
  MeshShape shape = [] {
    MeshShape s;
    s.pp = world_size();
    return s;
  }();
  Mesh mesh{MPI_COMM_WORLD, shape};
  std::unique_ptr<Axes> axes;
  const Axis& axis() { return (*axes)[AxisName::pp]; }
  Tensor fresh(DType type, int64_t n) { return be->alloc(type, 1, n, MemoryKind::workspace); }
};

/// Counts of the ranks: none at the ends, none in the middle, all at one rank, and plain ones.
std::vector<std::vector<int64_t>> cuts() {
  std::vector<std::vector<int64_t>> out;
  const auto n = static_cast<size_t>(world_size());
  std::vector<int64_t> uneven(n), holes(n), one(n), none(n);
  for (size_t r = 0; r < n; ++r) {
    uneven[r] = 1000 + 37 * static_cast<int64_t>(r);
    holes[r] = r % 2 ? 0 : 5 + static_cast<int64_t>(r);
  }
  one[n / 2] = 4099;
  out = {uneven, holes, one, none};
  std::reverse(holes.begin(), holes.end());
  out.push_back(holes);
  return out;
}
int64_t sum_of(const std::vector<int64_t>& counts, int end) {
  int64_t s = 0;
  for (int r = 0; r < end; ++r) s += counts[static_cast<size_t>(r)];
  return s;
}

/// Numbers of rank r that keep their value in every type but need care in a sum.
int64_t whole_number(int r, int64_t i) { return (i * 7 + r * 31) % 100 - 50; }
template <class T>
T as_type(int64_t x) {
  if constexpr (std::is_same_v<T, bf16>) return to_bf16(static_cast<float>(x));
  else return static_cast<T>(x);
}
template <class T>
double value_of(T x) {
  if constexpr (std::is_same_v<T, bf16>) return static_cast<double>(to_float(x));
  else return static_cast<double>(x);
}

template <class T>
void gathers_and_scatters(DType type) {
  Line line;
  const int n = world_size(), me = line.axis().rank();
  for (const auto& counts : cuts()) {
    const int64_t total = sum_of(counts, n), mine = counts[static_cast<size_t>(me)], begin = sum_of(counts, me);
    const Tensor whole = line.fresh(type, total), shard = line.fresh(type, mine), summed = line.fresh(type, mine);
    if (mine) {
      Host<T> h(*line.be, shard);
      for (int64_t i = 0; i < mine; ++i) h[i] = as_type<T>(whole_number(me, i));
    }
    line.axis().gather_parts(shard, whole, counts, "test").wait();
    int64_t wrong = 0;
    if (total) {
      Host<T> h(*line.be, whole);
      for (int r = 0; r < n; ++r)
        for (int64_t i = 0; i < counts[static_cast<size_t>(r)]; ++i)
          wrong += value_of(h[sum_of(counts, r) + i]) != static_cast<double>(whole_number(r, i));
      for (int64_t i = 0; i < total; ++i) h[i] = as_type<T>(whole_number(me, i));
    }
    EXPECT_EQ(wrong, 0) << "gathered of " << total;
    line.axis().scatter_sum_parts(whole, summed, counts, "test").wait();
    wrong = 0;
    if (mine) {
      Host<T> h(*line.be, summed);
      for (int64_t i = 0; i < mine; ++i) {
        int64_t sum = 0;
        for (int r = 0; r < n; ++r) sum += whole_number(r, begin + i);
        wrong += value_of(h[i]) != static_cast<double>(sum);
      }
    }
    EXPECT_EQ(wrong, 0) << "summed of " << mine;
  }
}

TEST(CollectivesParts, Float32) { gathers_and_scatters<float>(DType::f32); }
TEST(CollectivesParts, BFloat16) { gathers_and_scatters<bf16>(DType::bf16); }
TEST(CollectivesParts, Integers) { gathers_and_scatters<int64_t>(DType::i64); }

TEST(CollectivesParts, GatherAndScatterSumAreAdjoint) {
  // sum over ranks of <gather(x), y_r> = sum over ranks of <x, scatter_sum(y)_r>
  Line line;
  const int n = world_size(), me = line.axis().rank();
  for (const auto& counts : cuts()) {
    const int64_t total = sum_of(counts, n), mine = counts[static_cast<size_t>(me)];
    const std::string who = "rank " + std::to_string(me);
    const Tensor x = tensor_of_numbers(*line.be, DType::f64, "x of " + who, 0, 1, mine),
                 y = tensor_of_numbers(*line.be, DType::f64, "y of " + who, 0, 1, total);
    const Tensor gx = line.fresh(DType::f64, total), sy = line.fresh(DType::f64, mine);
    Pending a = line.axis().gather_parts(x, gx, counts, "test"), b = line.axis().scatter_sum_parts(y, sy, counts, "test");
    a.wait();
    b.wait();
    auto dot = [&](const Tensor& p, const Tensor& q) {
      const std::vector<double> u = to_host(*line.be, p), v = to_host(*line.be, q);
      double mine_sum = 0, sum = 0;
      for (size_t i = 0; i < u.size(); ++i) mine_sum += u[i] * v[i];
      MPI_Allreduce(&mine_sum, &sum, 1, MPI_DOUBLE, MPI_SUM, line.mesh.comm(AxisName::pp));
      return sum;
    };
    const double left = dot(gx, y), right = dot(x, sy);
    EXPECT_NEAR(left, right, 1e-10) << total;
    if (total > 1000) {
      EXPECT_NE(left, 0.0);
    }
  }
}

TEST(CollectivesParts, AShardMayLieInTheWhole) {
  Line line;
  const int n = world_size(), me = line.axis().rank();
  const std::vector<int64_t> counts = cuts()[0];
  const Tensor whole = line.fresh(DType::f32, sum_of(counts, n));
  const Tensor shard = whole.col_range(sum_of(counts, me), counts[static_cast<size_t>(me)]);
  {
    Host<float> h(*line.be, whole);
    for (int64_t i = 0; i < whole.size(); ++i) h[i] = static_cast<float>(whole_number(me, i));
  }
  line.axis().scatter_sum_parts(whole, shard, counts, "test").wait();
  line.axis().gather_parts(shard, whole, counts, "test").wait();  // together: the sum over ranks
  Host<float> h(*line.be, whole);
  int64_t wrong = 0;
  for (int64_t i = 0; i < whole.size(); ++i) {
    int64_t sum = 0;
    for (int r = 0; r < n; ++r) sum += whole_number(r, i);
    wrong += h[i] != static_cast<float>(sum);
  }
  EXPECT_EQ(wrong, 0);
}

TEST(CollectivesParts, WrongCountsAreRefused) {
  Line line;
  std::vector<int64_t> counts(static_cast<size_t>(world_size()), 4);
  const Tensor shard = line.fresh(DType::f32, 4), whole = line.fresh(DType::f32, 4 * world_size());
  counts.push_back(0);
  EXPECT_THROW((void)line.axis().gather_parts(shard, whole, counts, "test"), LogicError);
  counts.pop_back();
  counts[0] = 5;
  EXPECT_THROW((void)line.axis().gather_parts(shard, whole, counts, "test"), LogicError);
  EXPECT_THROW((void)line.axis().scatter_sum_parts(whole, shard, counts, "test"), LogicError);
  EXPECT_THROW((void)line.axis().send(shard, line.axis().rank(), 0, "test"), LogicError);
  EXPECT_THROW((void)line.axis().receive(shard, world_size(), 0, "test"), LogicError);
}

TEST(PointToPoint, BothDirectionsAtOnceAtAnySize) {
  Line line;
  const int me = line.axis().rank(), other = me ^ 1;
  for (int64_t bytes : {int64_t{1} << 10, int64_t{1} << 16, int64_t{1} << 20, int64_t{16} << 20}) {
    if (other >= world_size()) break;
    const int64_t n = bytes / 4;
    const Tensor out = line.fresh(DType::f32, n), in = line.fresh(DType::f32, n);
    {
      Host<float> h(*line.be, out);
      for (int64_t i = 0; i < n; ++i) h[i] = static_cast<float>(whole_number(me, i));
    }
    Pending sent = line.axis().send(out, other, 3, "out");  // neither buffered nor received yet
    line.axis().receive(in, other, 3, "in").wait();
    sent.wait();
    EXPECT_TRUE(sent.done());
    Host<float> h(*line.be, in);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) wrong += h[i] != static_cast<float>(whole_number(other, i));
    EXPECT_EQ(wrong, 0) << bytes << " bytes";
  }
}

TEST(PointToPoint, TagsAndOrderTellMessagesApart) {
  Line line;
  if (world_size() < 2) GTEST_SKIP() << "one rank has nobody to send to";
  // tag 32000 wraps to that of 0 and is then told apart by order; collectives in between meet neither
  const int tags[] = {0, 7, 7, 32000};
  const Tensor control = line.fresh(DType::f32, 1);
  line.be->zero(control);
  std::vector<Tensor> x;
  std::vector<Pending> pending;
  if (line.axis().rank() == 0) {
    for (int i = 0; i < 4; ++i) {
      x.push_back(line.fresh(DType::i64, 10));
      Host<int64_t> h(*line.be, x.back());
      for (int k = 0; k < 10; ++k) h[k] = 100 * i + k;
    }
    for (size_t i = 0; i < 4; ++i) pending.push_back(line.axis().send(x[i], 1, tags[i], "out"));
    x.clear();  // the Pending keeps what is under way
  }
  line.axis().sum(control, "between").wait();
  if (line.axis().rank() == 1) {
    for (int i = 0; i < 4; ++i) x.push_back(line.fresh(DType::i64, 10));
    for (size_t i : {1u, 0u, 2u, 3u}) pending.push_back(line.axis().receive(x[i], 0, tags[i], "in"));
    pending.clear();  // waits
    for (int i = 0; i < 4; ++i) {
      Host<int64_t> h(*line.be, x[static_cast<size_t>(i)]);
      for (int k = 0; k < 10; ++k) EXPECT_EQ(h[k], 100 * i + k);
    }
  }
}

TEST(PointToPoint, DoneSaysWhetherTheOtherEndHasCome) {
  Line line;
  if (world_size() < 2) GTEST_SKIP() << "one rank has nobody to send to";
  const int me = line.axis().rank();
  const Tensor x = line.fresh(DType::f32, 8);
  line.be->zero(x);
  const MPI_Comm comm = line.mesh.comm(AxisName::pp);
  auto becomes_done = [](Pending& p) {
    for (int i = 0; i < 20000 && !p.done(); ++i) std::this_thread::sleep_for(std::chrono::microseconds(500));
    return p.done();
  };
  Pending p;
  EXPECT_TRUE(p.done());
  if (me == 0) {  // a send that is not buffered
    p = line.axis().send(x, 1, 0, "out");
    EXPECT_FALSE(p.done());
  }
  MPI_Barrier(comm);
  if (me == 1) line.axis().receive(x, 0, 0, "in").wait();
  EXPECT_TRUE(becomes_done(p));
  p.wait();

  if (me == 1) {
    p = line.axis().receive(x, 0, 0, "in");
    EXPECT_FALSE(p.done());
  }
  MPI_Barrier(comm);
  if (me == 0) line.axis().send(x, 1, 0, "out").wait();
  EXPECT_TRUE(becomes_done(p));
  EXPECT_TRUE(p.done());
  p.wait();
}

TEST(PointToPoint, IsNotFinishedAtTheCallWithoutOverlap) {
  Line line;
  line.axes->traffic().overlap = false;
  const int other = line.axis().rank() ^ 1;
  const Tensor out = line.fresh(DType::f32, 8), in = line.fresh(DType::f32, 8);
  line.be->zero(out);
  if (other < world_size()) {
    Pending sent = line.axis().send(out, other, 0, "out");  // would wait for ever on both sides
    line.axis().receive(in, other, 0, "in").wait();
  }
}

TEST(PointToPoint, TrafficOfPartsAndSends) {
  Line line;
  const int64_t n = world_size();
  const int me = line.axis().rank();
  const std::vector<int64_t> counts = cuts()[0];
  const int64_t total = sum_of(counts, static_cast<int>(n)), mine = counts[static_cast<size_t>(me)];
  const Tensor whole = line.fresh(DType::f32, total), shard = line.fresh(DType::f32, mine), x = line.fresh(DType::bf16, 11);
  line.be->zero(shard);
  line.be->zero(x);
  line.axis().gather_parts(shard, whole, counts, "a").wait();
  line.axis().scatter_sum_parts(whole, shard, counts, "b").wait();
  if (n > 1) {  // along the line, last to nobody
    Pending sent = me + 1 < n ? line.axis().send(x, me + 1, 0, "c") : Pending();
    if (me > 0) line.axis().receive(x, me - 1, 0, "d").wait();
  }
  const auto& entries = line.axes->traffic().entries();
  const std::vector<CallRecord> ring = line.axes->traffic().ring();
  const auto &gathered = entries.at({AxisName::pp, "all_gather"}), &scattered = entries.at({AxisName::pp, "reduce_scatter"});
  EXPECT_EQ(gathered.scaled_bytes, n * (n - 1) * mine * 4);
  EXPECT_EQ(scattered.scaled_bytes, n * (total - mine) * 4);
  long long own[2] = {gathered.scaled_bytes, scattered.scaled_bytes}, sums[2] = {0, 0};
  MPI_Allreduce(own, sums, 2, MPI_LONG_LONG, MPI_SUM, line.mesh.comm(AxisName::pp));
  for (long long s : sums) EXPECT_EQ(s / n, (n - 1) * total * 4);  // as one gather of the ring

  const bool sends = me + 1 < n, receives = me > 0;
  EXPECT_EQ(entries.count({AxisName::pp, "shift"}), sends ? 1u : 0u);
  if (sends) {
    EXPECT_EQ(entries.at({AxisName::pp, "shift"}).scaled_bytes, n * 22);
    EXPECT_EQ(entries.at({AxisName::pp, "shift"}).calls, 1);
  }
  EXPECT_EQ(entries.size(), sends ? 3u : 2u);  // a receive has no entry
  ASSERT_EQ(ring.size(), 2u + sends + receives);
  for (const CallRecord& r : ring) EXPECT_TRUE(r.finished);
  if (receives) {
    EXPECT_STREQ(ring.back().op, "receive");
    EXPECT_STREQ(ring.back().site, "d");
    EXPECT_EQ(ring.back().bytes, 22);
  }
}

TEST(PointToPoint, ReceivingTakesSecondsOfTheAxis) {
  Line line;
  if (world_size() < 2) GTEST_SKIP() << "one rank has nobody to send to";
  const Tensor x = line.fresh(DType::f32, 8);
  line.be->zero(x);
  MPI_Barrier(line.mesh.comm(AxisName::pp));
  if (line.axis().rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    line.axis().send(x, 1, 0, "late").wait();
  } else if (line.axis().rank() == 1) {
    line.axis().receive(x, 0, 0, "early").wait();
    EXPECT_GT(line.axes->traffic().take_seconds(AxisName::pp), 0.02);
  }
}

TEST(PointToPoint, AnErrorOnItsWayUpDoesNotWaitForMessagesThatMayNeverCome) {
  Line line;
  if (world_size() < 2) GTEST_SKIP() << "one rank has nobody to send to";
  const Tensor x = line.fresh(DType::f32, 8);
  if (line.axis().rank() == 1) {
    EXPECT_THROW(
        {
          Pending pending = line.axis().receive(x, 0, 3, "never sent so far");
          throw FaultError("something else went wrong");
        },
        FaultError);
  }
  MPI_Barrier(line.mesh.comm(AxisName::pp));  // reached without the message
  line.be->zero(x);
  if (line.axis().rank() == 0) line.axis().send(x, 1, 3, "so that MPI ends in order").wait();
  MPI_Barrier(line.mesh.comm(AxisName::pp));
}

TEST(PointToPoint, AnUnknownValueOfTheTestSwitchIsRefused) {
  Line line;
  setenv("ORTHANT_SYNCHRONOUS_SENDS", "yes", 1);
  EXPECT_THROW(make_mpi_transport(*line.be, line.mesh.comm(AxisName::pp)), UsageError);
  unsetenv("ORTHANT_SYNCHRONOUS_SENDS");
}

}  // namespace
}  // namespace orthant
