// Collectives along one axis: order and rounding of sums, all sizes, and the bytes they count.
// ranks: 1 2 4
// labels: smoke asan
#include <gtest/gtest.h>

#include <limits>

#include "mesh_kit.hpp"
#include "orthant/elementwise.hpp"

namespace orthant {
namespace {

using namespace kit;

struct Line {  // all ranks on tp
  std::unique_ptr<Backend> be = make_backend("debug");
  MeshShape shape = [] {
    MeshShape s;
    s.tp = world_size();
    return s;
  }();
  Mesh mesh{MPI_COMM_WORLD, shape};
  Axes axes{*be, mesh};
  const Axis& axis = axes[AxisName::tp];
};

std::string name_of_rank(int r) { return "rank " + std::to_string(r); }

/// Numbers of rank r: many magnitudes, so that the order of a sum shows in its last bits.
double wild(int r, int64_t i) {
  return number(name_of_rank(r), i) * std::ldexp(1.0, static_cast<int>((i * 7 + r * 11) % 24));
}

/// The sum in rank order, in Wide, rounded at the end.
template <class Wide>
Wide in_order(int64_t i, Wide (*value)(int, int64_t)) {
  Wide sum = value(0, i);
  for (int r = 1; r < world_size(); ++r) sum += value(r, i);
  return sum;
}

TEST(Collectives, SumsHaveTheOrderOfRanks) {
  Line line;
  for (int64_t n : {1, 3, 2048, 2049, 10007}) {  // 8 KiB is 2048 floats: below gathered at once, above in pieces
    const Tensor x = line.be->alloc(DType::f32, 1, n, MemoryKind::workspace),
                 y = line.be->alloc(DType::f64, 1, n, MemoryKind::workspace);
    {
      Host<float> hx(*line.be, x);
      Host<double> hy(*line.be, y);
      for (int64_t i = 0; i < n; ++i) {
        hx[i] = static_cast<float>(wild(line.axis.rank(), i));
        hy[i] = wild(line.axis.rank(), i) / 3;
      }
    }
    Pending a = line.axis.sum(x, "test"), b = line.axis.sum(y, "test");  // two under way at once
    b.wait();
    a.wait();
    Host<float> hx(*line.be, x);
    Host<double> hy(*line.be, y);
    int64_t wrong = 0;  // counted, so that every rank goes on to the next collective call
    for (int64_t i = 0; i < n; ++i) {
      wrong += hx[i] != in_order<float>(i, [](int r, int64_t j) { return static_cast<float>(wild(r, j)); });
      wrong += hy[i] != in_order<double>(i, [](int r, int64_t j) { return wild(r, j) / 3; });
    }
    EXPECT_EQ(wrong, 0) << "of 2 x " << n;
  }
}

TEST(Collectives, SixteenBitSumsAreMadeInFp32AndRoundedOnce) {
  Line line;
  int rounded_twice = 0;
  for (int64_t n : {5, 4096, 4097, 9001}) {
    auto value = [](int r, int64_t i) {
      return to_float(to_bf16(static_cast<float>(wild(r, i % 8 == 0 ? i : i + 8))));
    };
    const Tensor x = line.be->alloc(DType::bf16, 1, n, MemoryKind::workspace);
    {
      Host<bf16> h(*line.be, x);
      for (int64_t i = 0; i < n; ++i) h[i] = to_bf16(value(line.axis.rank(), i));
    }
    line.axis.sum(x, "test").wait();
    Host<bf16> h(*line.be, x);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      float once = value(0, i), twice = value(0, i);
      for (int r = 1; r < world_size(); ++r) {
        once += value(r, i);
        twice = to_float(to_bf16(twice + value(r, i)));
      }
      wrong += h[i].bits != to_bf16(once).bits;
      rounded_twice += to_bf16(twice).bits != to_bf16(once).bits;
    }
    EXPECT_EQ(wrong, 0) << "of " << n;
  }
  if (world_size() > 2) {
    EXPECT_GT(rounded_twice, 0) << "the numbers would not show a sum rounded at each step";
  }
}

TEST(Collectives, IntegersAreExact) {
  Line line;
  for (int64_t n : {3, 1024, 1025, 5001}) {
    const Tensor x = line.be->alloc(DType::i64, 1, n, MemoryKind::workspace);
    auto value = [](int r, int64_t i) { return (int64_t{1} << 60) / (r + 2) - i * 1000003 * (r % 2 ? 1 : -1); };
    {
      Host<int64_t> h(*line.be, x);
      for (int64_t i = 0; i < n; ++i) h[i] = value(line.axis.rank(), i);
    }
    line.axis.sum(x, "test").wait();
    Host<int64_t> h(*line.be, x);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      int64_t sum = 0;
      for (int r = 0; r < world_size(); ++r) sum += value(r, i);
      wrong += h[i] != sum;
    }
    EXPECT_EQ(wrong, 0) << "of " << n;
  }
}

TEST(Collectives, ScatterSumGivesThePieceOfTheSum) {
  Line line;
  const int n = world_size();
  for (int64_t piece : {1, 37, 4001}) {
    const Tensor whole = line.be->alloc(DType::f32, 1, piece * n, MemoryKind::workspace),
                 shard = line.be->alloc(DType::f32, 1, piece, MemoryKind::workspace);
    {
      Host<float> h(*line.be, whole);
      for (int64_t i = 0; i < whole.size(); ++i) h[i] = static_cast<float>(wild(line.axis.rank(), i));
    }
    line.axis.scatter_sum(whole, shard, "test").wait();
    Host<float> h(*line.be, shard);
    int64_t wrong = 0;
    for (int64_t i = 0; i < piece; ++i) {
      const int64_t at = piece * line.axis.rank() + i;
      wrong += h[i] != in_order<float>(at, [](int r, int64_t j) { return static_cast<float>(wild(r, j)); });
    }
    EXPECT_EQ(wrong, 0) << "of " << piece;
  }
}

TEST(Collectives, GatherKeepsTheOrderOfRanks) {
  Line line;
  const Tensor shard = tensor_of_numbers(*line.be, DType::bf16, name_of_rank(line.axis.rank()), 0, 3, 7);
  const Tensor whole = line.be->alloc(DType::bf16, 3 * world_size(), 7, MemoryKind::workspace);
  line.axis.gather(shard, whole, "test").wait();
  for (int r = 0; r < world_size(); ++r)
    EXPECT_EQ(to_host(*line.be, whole.row_range(3 * r, 3)),
              to_host(*line.be, tensor_of_numbers(*line.be, DType::bf16, name_of_rank(r), 0, 3, 7)));
}

TEST(Collectives, MaxKeepsNotANumberAndMinusInfinity) {
  Line line;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const int last = world_size() - 1;
  const Tensor x = line.be->alloc(DType::f32, 1, 4, MemoryKind::workspace);
  {
    Host<float> h(*line.be, x);
    h[0] = static_cast<float>(line.axis.rank()) - 5.0f;
    h[1] = line.axis.rank() == 0 ? nan : 1.0f;     // first
    h[2] = line.axis.rank() == last ? nan : 1.0f;  // last
    h[3] = -inf;                                   // every shard empty
  }
  line.axis.max(x, "test").wait();
  Host<float> h(*line.be, x);
  EXPECT_EQ(h[0], static_cast<float>(last) - 5.0f);
  EXPECT_TRUE(std::isnan(h[1]));
  EXPECT_TRUE(std::isnan(h[2]));
  EXPECT_EQ(h[3], -inf);
}

TEST(Collectives, PendingWaitsWhenItIsDropped) {
  Line line;
  const Tensor x = tensor_of_numbers(*line.be, DType::f64, "same", 0, 1, 5000);
  const std::vector<double> before = to_host(*line.be, x);
  { Pending dropped = line.axis.sum(x, "test"); }
  const std::vector<double> after = to_host(*line.be, x);
  double worst = 0;
  for (size_t i = 0; i < after.size(); ++i) worst = std::max(worst, std::abs(after[i] - before[i] * world_size()));
  EXPECT_LE(worst, 1e-14);
}

TEST(Collectives, TrafficFollowsTheRingConvention) {
  Line line;
  const int64_t n = world_size();
  Traffic& traffic = line.axes.traffic();
  auto fresh = [&](DType t, int64_t count) {
    const Tensor x = line.be->alloc(t, 1, count, MemoryKind::workspace);
    line.be->zero(x);
    return x;
  };
  line.axis.sum(fresh(DType::f32, 100), "a").wait();
  line.axis.max(fresh(DType::f32, 10), "b").wait();
  line.axis.gather(fresh(DType::bf16, 8), fresh(DType::bf16, 8 * n), "c").wait();
  line.axis.scatter_sum(fresh(DType::f64, 6 * n), fresh(DType::f64, 6), "d").wait();
  line.axis.shift(fresh(DType::f32, 11), fresh(DType::f32, 11), 1, "e").wait();
  line.axis.sum_control(fresh(DType::i64, 1));  // no part of the traffic
  auto scaled = [&](const char* op) { return traffic.entries().at({AxisName::tp, op}); };
  EXPECT_EQ(scaled("all_reduce").calls, 2);
  EXPECT_EQ(scaled("all_reduce").ranks, n);
  EXPECT_EQ(scaled("all_reduce").scaled_bytes, 2 * (n - 1) * 440);
  EXPECT_EQ(scaled("all_gather").scaled_bytes, (n - 1) * 16 * n);
  EXPECT_EQ(scaled("reduce_scatter").scaled_bytes, (n - 1) * 48 * n);
  EXPECT_EQ(scaled("shift").scaled_bytes, n > 1 ? n * 44 : 0);
  EXPECT_EQ(traffic.entries().size(), 4u);

  const std::vector<CallRecord> ring = traffic.ring();
  ASSERT_EQ(ring.size(), 5u);
  EXPECT_STREQ(ring[3].site, "d");
  EXPECT_EQ(ring[3].sequence, 3);
  for (const CallRecord& r : ring) EXPECT_TRUE(r.finished);
  for (int i = 0; i < 100; ++i) line.axis.sum(fresh(DType::f32, 1), "again").wait();
  EXPECT_EQ(traffic.ring().size(), 64u);
  EXPECT_EQ(traffic.ring().front().sequence, 41);
  EXPECT_EQ(traffic.ring().back().sequence, 104);
}

TEST(Collectives, WrongSizesAreRefused) {
  Line line;
  const Tensor a = line.be->alloc(DType::f32, 1, 6, MemoryKind::workspace),
               b = line.be->alloc(DType::f32, 1, 6 * world_size() + 1, MemoryKind::workspace);
  EXPECT_THROW((void)line.axis.gather(a, b, "test"), LogicError);
  EXPECT_THROW((void)line.axis.scatter_sum(b, a, "test"), LogicError);
}

}  // namespace
}  // namespace orthant
