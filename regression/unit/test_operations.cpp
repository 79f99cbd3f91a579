// What is made from the list of operations: `debug` opens every tensor among the arguments, for the time of the call and
// no longer; `meta` counts the time of products and of attention.
// labels: smoke asan
#include <gtest/gtest.h>

#include <memory>

#include "backends/debug/open_tensors.hpp"
#include "backends/meta/meta_backend.hpp"

using namespace orthant;

namespace {

struct Unknown {
  Tensor hidden;
};
template <class X>
concept TakenApart = requires(const X& x, void (*f)(const Tensor&)) { tensors_in(x, f); };
static_assert(TakenApart<Tensor> && TakenApart<double> && TakenApart<DType> && TakenApart<std::vector<Product>>);
static_assert(!TakenApart<Unknown>, "a type of argument that nobody has taken apart must not compile");

class Opened : public ::testing::Test {
 protected:
  Tensor tensor() {
    auto block = std::make_shared<GuardedStorage>();
    EXPECT_TRUE(arena_.take(*block, 8));
    return Tensor(block, block->data, DType::f64, 1, 1, 1);
  }
  static int users(const Tensor& x) { return static_cast<GuardedStorage&>(*x.storage()).users; }

  Arena arena_;
};

TEST_F(Opened, TensorsInsideOfArguments) {
  const Tensor x = tensor(), starts = tensor(), tokens = tensor(), q = tensor(), scales = tensor(), a = tensor(),
               b = tensor(), c = tensor(), other = tensor();
  AttentionShape s;
  s.starts = starts;
  s.dropout.tokens = tokens;
  {
    const OpenTensors open(arena_, s, true, 1.5, x, Tensor(), Quantised{q, scales, 0, 0}, DType::f32, RopeShape{},
                           RouterShape{}, AdamwStep{}, SgdStep{},
                           std::vector<Product>{{a, false, b, true, c, false}, {a, false, x, false, c, true}});
    for (const Tensor* t : {&starts, &tokens, &q, &scales, &b}) EXPECT_EQ(users(*t), 1);
    for (const Tensor* t : {&x, &a, &c}) EXPECT_EQ(users(*t), 2);
    EXPECT_EQ(users(other), 0);
    for (const Tensor* t : {&x, &starts, &tokens, &q, &scales, &a, &b, &c}) *t->as<double>() = 1;  // else it aborts here
  }
  for (const Tensor* t : {&x, &starts, &tokens, &q, &scales, &a, &b, &c}) EXPECT_EQ(users(*t), 0);
}

TEST_F(Opened, NothingWhenOneIsOfAnotherBackend) {
  double host = 0;
  auto storage = std::make_shared<Storage>();
  storage->data = &host;
  const Tensor mine = tensor(), foreign(storage, &host, DType::f64, 1, 1, 1);
  EXPECT_THROW(OpenTensors(arena_, mine, foreign), LogicError);
  EXPECT_EQ(users(mine), 0);
}

TEST(MetaFlops, ProductsAndAttentionTakeTime) {
  MetaBackend be;
  const auto clock = std::make_shared<WorkClock>(false);
  be.times(clock);
  const auto matrix = [&](int64_t rows, int64_t cols, DType t = DType::f32) {
    return be.alloc(t, rows, cols, MemoryKind::workspace);
  };
  auto took = [&, before = 0.0]() mutable {
    const double flops = clock->flops() - before;
    before = clock->flops();
    return flops;
  };
  be.gemm(matrix(5, 3), true, matrix(5, 7), false, matrix(3, 7), true);
  EXPECT_EQ(took(), 2 * 3 * 5 * 7);
  be.gemm_canonical(matrix(3, 5), false, matrix(7, 5), true, matrix(3, 7));
  EXPECT_EQ(took(), 2 * 3 * 5 * 7);
  be.grouped_gemm({{matrix(3, 5), false, matrix(5, 7), false, matrix(3, 7), false},
                   {matrix(0, 5), false, matrix(5, 7), false, matrix(0, 7), false},
                   {matrix(2, 3), false, matrix(3, 4), false, matrix(2, 4), false}});
  EXPECT_EQ(took(), 2 * 3 * 5 * 7 + 2 * 2 * 3 * 4);
  const auto fp8 = [&](int64_t rows, int64_t cols) { return Quantised{matrix(rows, cols, DType::f8e4m3), matrix(1, 1), 0, 0}; };
  be.gemm_fp8(fp8(3, 5), false, fp8(5, 7), false, matrix(3, 7), false);
  EXPECT_EQ(took(), 2 * 3 * 5 * 7);

  AttentionShape s;  // two sequences of three, heads of 4 with values of 2: six pairs a head and sequence
  s.batch = 2, s.q_length = s.k_length = 3, s.heads = 2, s.head_dim = 4, s.v_dim = 2;
  be.attention_forward(s, matrix(6, 8), matrix(6, 4), matrix(6, 2), matrix(6, 4), matrix(6, 2));
  EXPECT_EQ(took(), 2 * (6 * 2 * 2) * (4 + 2));
  be.attention_backward(s, matrix(6, 4), matrix(6, 8), matrix(6, 4), matrix(6, 2), matrix(6, 4), matrix(6, 2),
                        matrix(6, 8), matrix(6, 4), matrix(6, 2));
  EXPECT_EQ(took(), 2 * (6 * 2 * 2) * (3 * 4 + 2 * 2));

  be.add(matrix(3, 5), matrix(3, 5), matrix(3, 5));
  EXPECT_EQ(took(), 0);
  EXPECT_THROW(be.add(matrix(3, 5), matrix(5, 3), matrix(3, 5)), LogicError);
}

}  // namespace
