// The maps between ranks come in pairs of transposes: <enter x, y> = <x, leave y>, for edges and for single
// collectives.
// ranks: 1 2 4 8
// labels: smoke asan
#include <gtest/gtest.h>

#include "mesh_kit.hpp"
#include "orthant/edges.hpp"

namespace orthant {
namespace {

using namespace kit;

constexpr int64_t rows = 16, cols = 5;  // of the whole

double dot(Backend& be, const Tensor& a, const Tensor& b) {
  const std::vector<double> x = to_host(be, a), y = to_host(be, b);
  EXPECT_EQ(x.size(), y.size());
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

double over_ranks(double x) {
  MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return x;
}

/// A tensor of its own on each rank.
Tensor own(Backend& be, const std::string& name, int64_t r, int64_t c) {
  return tensor_of_numbers(be, DType::f64, name + std::to_string(world_rank()), 0, r, c);
}

template <class Role>
void check_edge(const std::string& backend, bool sp, bool exact, bool cut = true) {
  SCOPED_TRACE(backend + (sp ? ", sequence parallel" : "") + (exact ? ", exact" : "") + (cut ? "" : ", uncut"));
  RigOptions o;
  o.backend = backend;
  o.sequence_parallel = sp;
  o.reproducible = exact;
  MeshShape shape;
  shape.tp = world_size();
  shape.etp = shape.tp;
  shape.cut_heads = shape.cut_ffn = shape.cut_vocab = cut;
  Rig rig(MPI_COMM_WORLD, shape, {}, o);
  Backend& be = *rig.backend;
  const Edge<Role> edge(rig.axes, rig.layout);
  // The space before `enter` has one x: cut over the ranks, or the same on each.
  const int64_t part = sp ? rows / world_size() : rows;
  const Tensor x = tensor_of_numbers(be, DType::f64, "x", sp ? part * world_rank() : 0, part, cols);
  // Behind `enter` each rank works on a part of its own; where nothing is cut all do the same, so y is one.
  const Tensor y = cut ? own(be, "y", rows, cols) : tensor_of_numbers(be, DType::f64, "y", 0, rows, cols);
  const double inside = dot(be, edge.enter(rig.ctx, x, "test"), y), before = cut ? over_ranks(inside) : inside;
  Partial p = make_partial(rig.ctx, rows, cols);
  exact ? be.exact_add(y, p.exact) : be.copy(p.value, y);
  const Tensor left = edge.leave(rig.ctx, p, "test").wait();
  EXPECT_EQ(left.rows(), part);
  const double after = sp ? over_ranks(dot(be, x, left)) : dot(be, x, left);
  EXPECT_NE(before, 0.0);
  EXPECT_NEAR(before, after, 1e-13 * rows * cols);
}

TEST(Edges, EnterAndLeaveAreTransposes) {
  for (const char* backend : {"cpu", "debug"})
    for (bool sp : {false, true})
      for (bool exact : {false, true}) {
        check_edge<HeadRole>(backend, sp, exact);
        check_edge<FfnRole>(backend, sp, exact);
        check_edge<VocabRole>(backend, sp, exact);
        check_edge<ExpertRole>(backend, sp, exact);
        check_edge<HeadRole>(backend, sp, exact, false);
        check_edge<FfnRole>(backend, sp, exact, false);
        check_edge<VocabRole>(backend, sp, exact, false);
      }
}

/// A rig whose axis `name` holds all ranks.
std::unique_ptr<Rig> rig_on(AxisName name) {
  MeshShape shape;
  (name == AxisName::tp   ? shape.tp
   : name == AxisName::cp ? shape.cp
   : name == AxisName::pp ? shape.pp
                          : shape.dp) = world_size();
  return std::make_unique<Rig>(MPI_COMM_WORLD, shape, std::vector<Param>{}, RigOptions{});
}

class Collective : public ::testing::TestWithParam<AxisName> {
 protected:
  std::unique_ptr<Rig> rig_ = rig_on(GetParam());
  const Axis& axis_ = rig_->axes[GetParam()];
  Backend& be_ = *rig_->backend;
  Tensor fresh(int64_t r, int64_t c) { return be_.alloc(DType::f64, r, c, MemoryKind::workspace); }
  void expect_equal(double a, double b) {
    EXPECT_NE(a, 0.0);
    EXPECT_NEAR(over_ranks(a), over_ranks(b), 1e-12);
  }
};

TEST_P(Collective, GatherAndScatterSumAreTransposes) {
  const Tensor x = own(be_, "x", 3, cols), y = own(be_, "y", 3 * world_size(), cols);
  const Tensor whole = fresh(3 * world_size(), cols), shard = fresh(3, cols);
  axis_.gather(x, whole, "test").wait();
  axis_.scatter_sum(y, shard, "test").wait();
  expect_equal(dot(be_, whole, y), dot(be_, x, shard));
}

TEST_P(Collective, SumIsItsOwnTranspose) {
  for (int64_t n : {7, 3000}) {  // gathered at once, and in pieces
    const Tensor x = own(be_, "x", 1, n), y = own(be_, "y", 1, n), sx = fresh(1, n), sy = fresh(1, n);
    be_.copy(sx, x);
    be_.copy(sy, y);
    axis_.sum(sx, "test").wait();
    axis_.sum(sy, "test").wait();
    expect_equal(dot(be_, sx, y), dot(be_, x, sy));
  }
}

TEST_P(Collective, ShiftAndShiftBackAreTransposes) {
  for (int by : {1, -1, 3}) {
    const Tensor x = own(be_, "x", 4, cols), y = own(be_, "y", 4, cols), there = fresh(4, cols),
                 back = fresh(4, cols);
    axis_.shift(x, there, by, "test").wait();
    axis_.shift(y, back, -by, "test").wait();
    expect_equal(dot(be_, there, y), dot(be_, x, back));
  }
}

TEST_P(Collective, ShiftComesFromTheRankBefore) {
  const Tensor x = fresh(1, 1), got = fresh(1, 1);
  Host<double>(be_, x)[0] = axis_.rank();
  axis_.shift(x, got, 1, "test").wait();
  EXPECT_EQ(to_host(be_, got)[0], (axis_.rank() + world_size() - 1) % world_size());
}

TEST_P(Collective, ExchangeWithTransposedCountsIsTheTranspose) {
  const int n = world_size();
  // from r to s: some of them nothing; the last rank gets nothing from anyone but itself
  auto count = [n](int r, int s) -> int64_t { return s == n - 1 && r != s ? 0 : (r * 5 + s * 3) % 4 + (r == s); };
  std::vector<int64_t> sends, receives;
  int64_t sent = 0, received = 0;
  for (int s = 0; s < n; ++s) {
    sends.push_back(count(axis_.rank(), s));
    receives.push_back(count(s, axis_.rank()));
    sent += sends.back();
    received += receives.back();
  }
  const Tensor x = own(be_, "x", sent, cols), y = own(be_, "y", received, cols), there = fresh(received, cols),
               back = fresh(sent, cols);
  axis_.exchange(x, sends, there, receives, "test").wait();
  axis_.exchange(y, receives, back, sends, "test").wait();
  EXPECT_NEAR(over_ranks(dot(be_, there, y)), over_ranks(dot(be_, x, back)), 1e-12);
  // rows stay whole and in order: the rows from rank r are r's rows that were meant for this rank
  int64_t at = 0;
  for (int r = 0; r < n; ++r) {
    int64_t first = 0;
    for (int s = 0; s < axis_.rank(); ++s) first += count(r, s);
    const std::vector<double> got = to_host(be_, there.row_range(at, receives[static_cast<size_t>(r)]));
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i], number("x" + std::to_string(r), first * cols + static_cast<int64_t>(i)));
    at += receives[static_cast<size_t>(r)];
  }
}

INSTANTIATE_TEST_SUITE_P(Axes, Collective, ::testing::Values(AxisName::tp, AxisName::cp, AxisName::pp, AxisName::dp),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace orthant
