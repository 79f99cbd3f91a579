// The transport that only takes time: no call ever ends before it is due, and the fastest of some tries (a busy machine
// may be late) not much after; work hides the wire.
// ranks: 1 4
// labels: smoke
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "mesh_kit.hpp"
#include "orthant/error.hpp"

namespace orthant {
namespace {

using namespace kit;
using Clock = std::chrono::steady_clock;
constexpr double rate = 1e-6;  // 1 MB/s: 40000 bytes take 40 ms
constexpr int tries = 4;         // upper bounds are for the fastest of these
constexpr double hiccup = 0.02;  // seconds

struct Line {
  std::unique_ptr<Backend> be = make_backend("meta");
  MeshShape shape = [] {
    MeshShape s;
    s.pp = world_size();
    return s;
  }();
  Mesh mesh{MPI_COMM_WORLD, shape};
  Axes axes{*be, mesh, rate};
  const Axis& axis = axes[AxisName::pp];
  int me = axis.rank(), n = axis.size();
  Tensor bytes(int64_t count) { return be->alloc(DType::bf16, 1, count / 2, MemoryKind::workspace); }
  /// The same moment on all ranks, in seconds of the clock: the latest arrival.
  double together() {
    double now = std::chrono::duration<double>(Clock::now().time_since_epoch()).count(), latest = 0;
    MPI_Allreduce(&now, &latest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return latest;
  }
};
double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }
void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST(SleepTransport, CollectivesTakeTheirBytesOnTheRing) {
  Line line;
  const int64_t piece = 10000, whole = piece * line.n;
  const std::vector<int64_t> equal(static_cast<size_t>(line.n), piece / 2), rows(static_cast<size_t>(line.n), 1);
  const double share = static_cast<double>(line.n - 1) / line.n;
  struct Case {
    const char* name;
    double wire;
    std::function<Pending()> call;
  };
  const std::vector<Case> cases = {
      {"sum", 2 * share * static_cast<double>(whole), [&] { return line.axis.sum(line.bytes(whole), "t"); }},
      {"gather", share * static_cast<double>(whole), [&] { return line.axis.gather(line.bytes(piece), line.bytes(whole), "t"); }},
      {"scatter_sum", share * static_cast<double>(whole), [&] { return line.axis.scatter_sum(line.bytes(whole), line.bytes(piece), "t"); }},
      {"gather_parts", share * static_cast<double>(whole), [&] { return line.axis.gather_parts(line.bytes(piece), line.bytes(whole), equal, "t"); }},
      {"scatter_sum_parts", share * static_cast<double>(whole), [&] { return line.axis.scatter_sum_parts(line.bytes(whole), line.bytes(piece), equal, "t"); }},
      {"shift", line.n > 1 ? static_cast<double>(whole) : 0.0, [&] { return line.axis.shift(line.bytes(whole), line.bytes(whole), 1, "t"); }},
      {"exchange", share * static_cast<double>(whole),
       [&] {
         const Tensor x = line.bytes(whole).reshaped(line.n, piece / 2);
         return line.axis.exchange(x, rows, x, rows, "t");
       }},
  };
  for (const Case& c : cases) {
    double shortest = 1e9;
    for (int i = 0; i < tries; ++i) {
      const double begin = line.together();
      c.call().wait();
      const double took = now() - begin;
      EXPECT_GE(took, c.wire * rate) << c.name;
      shortest = std::min(shortest, took);
    }
    EXPECT_LE(shortest, c.wire * rate + hiccup) << c.name;
  }
}

TEST(SleepTransport, TheLatestRankDecides) {
  Line line;
  if (line.n < 2) GTEST_SKIP() << "one rank waits for nobody";
  const double due = 0.05 + 10000.0 * (line.n - 1) * rate;
  double shortest = 1e9;
  for (int i = 0; i < tries; ++i) {
    const double begin = line.together();
    if (line.me == line.n - 1) sleep(0.05);
    line.axis.gather(line.bytes(10000), line.bytes(10000 * line.n), "t").wait();
    const double took = now() - begin;
    EXPECT_GE(took, due);
    shortest = std::min(shortest, took);
  }
  EXPECT_LE(shortest, due + hiccup);
}

TEST(SleepTransport, WorkHidesTheWire) {
  Line line;
  double shortest = 1e9;
  for (int i = 0; i < tries; ++i) {
    (void)line.together();
    Pending p = line.axis.sum(line.bytes(40000), "t");
    sleep(0.1);
    const double begin = now();
    p.wait();
    shortest = std::min(shortest, now() - begin);
  }
  EXPECT_LT(shortest, hiccup) << "of 60 ms";
}

TEST(SleepTransport, ASenderGoesOnAndAReceiverWaitsForTheWire) {
  Line line;
  if (line.n < 2) GTEST_SKIP() << "one rank has nobody to send to";
  const Tensor x = line.bytes(80000);  // 80 ms
  double send_took = 1e9, receive_took = 1e9;
  for (int i = 0; i < tries; ++i) {
    const double begin = line.together();
    if (line.me % 2 == 0 && line.me + 1 < line.n) {
      Pending p = line.axis.send(x, line.me + 1, i, "out");
      p.wait();
      send_took = std::min(send_took, now() - begin);
    } else if (line.me % 2 == 1) {
      Pending p = line.axis.receive(x, line.me - 1, i, "in");
      if (p.done()) {
        EXPECT_GE(now() - begin, 0.08);
      }
      p.wait();
      const double took = now() - begin;
      EXPECT_GE(took, 0.08);
      receive_took = std::min(receive_took, took);
    }
  }
  if (line.me % 2 == 0 && line.me + 1 < line.n) {
    EXPECT_LT(send_took, hiccup);
  } else if (line.me % 2 == 1) {
    EXPECT_LT(receive_took, 0.08 + hiccup);
  }

  // a receiver that asks late finds the data there: they flow from the send on
  double shortest = 1e9;
  for (int i = 0; i < tries; ++i) {
    (void)line.together();
    if (line.me == 0) line.axis.send(x, 1, 9, "out").wait();
    if (line.me == 1) {
      sleep(0.12);
      const double begin = now();
      line.axis.receive(x, 0, 9, "in").wait();
      shortest = std::min(shortest, now() - begin);
    }
  }
  if (line.me == 1) {
    EXPECT_LT(shortest, hiccup) << "of 80 ms";
  }
}

TEST(SleepTransport, DoneComesWithTheDueTime) {
  Line line;
  if (line.n < 2) GTEST_SKIP() << "one rank has nobody to send to";
  const Tensor x = line.bytes(60000);
  const double begin = line.together();
  const int other = line.me ^ 1;
  Pending sent = line.axis.send(x, other, 0, "out"), received = line.axis.receive(x, other, 0, "in");
  int64_t turns = 0;
  while (!received.done()) {
    sleep(0.001);
    ASSERT_LT(++turns, 5000);
  }
  EXPECT_GE(now() - begin, 0.06);
  received.wait();
  sent.wait();
  EXPECT_TRUE(received.done() && sent.done());
}

TEST(SleepTransport, CountsLikeTheOthers) {
  Line line;
  line.axis.sum(line.bytes(400), "t").wait();
  line.axis.sum_control(line.bytes(8));
  const auto& entries = line.axes.traffic().entries();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries.at({AxisName::pp, "all_reduce"}).scaled_bytes, 2 * (line.n - 1) * 400);
}

TEST(SleepTransport, ABackendWithNumbersIsRefused) {
  Line line;
  const auto cpu = make_backend("cpu");
  EXPECT_THROW(Axes(*cpu, line.mesh, rate), LogicError);
}

}  // namespace
}  // namespace orthant
