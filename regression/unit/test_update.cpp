// Updates of the cpu backend: AdamW and SGD against closed formulas and against numbers computed with PyTorch 2.15.
// labels: smoke
#include "ops_helpers.hpp"

using namespace ops;

namespace {

class Update : public ::testing::Test {
 protected:
  std::unique_ptr<Backend> owner_ = backend_with(2);
  Backend& b_ = *owner_;
};

AdamwStep adamw_step(int t, double lr = 0.01, double decay = 0.1, double scale = 1) {
  return {lr, 0.9, 0.95, 1e-8, decay, 1 - std::pow(0.9, t), 1 - std::pow(0.95, t), scale};
}

/// Weights start at p0 and see gradients g; state after five steps.
const Values p0 = {0.803276062f, 0.174833387f, 0.0889780968f, -0.613718033f, 0.0461824499f, -1.36825919f};
const std::vector<Values> gradients = {
    {0.00033749509f, 0.00101111596f, -0.00143517938f, 0.000977431773f, 0.000522050017f, 0.00123791676f},
    {-0.00864635594f, 0.00298960833f, 0.00419218652f, -0.000798543217f, 0.00926410872f, 0.0081567755f},
    {0.0495189019f, -0.0164316986f, -0.0677962229f, -0.105910741f, 0.0747696683f, 0.0238917414f},
    {-0.392150223f, 0.151914895f, -1.18373322f, 0.534360707f, -1.45102274f, -0.629374027f},
    {1.54415107f, -2.47990155f, 4.53501177f, 0.120910913f, 13.4203548f, 14.6200371f}};

TEST_F(Update, adamw_equals_pytorch) {
  const Values p_want = {0.792189121, 0.159515202, 0.101724163, -0.624320328, 0.022015905, -1.38724875};
  const Values m_want = {0.122524448, -0.235364512, 0.341685146, 0.0516106971, 1.21820939, 1.40797114};
  const Values v_want = {0.126638636, 0.308604419, 1.095083, 0.0148004247, 9.10556221, 10.7061186};
  for (DType a : {DType::f32, DType::f64}) {
    const Matrix p(b_, a, 2, 3, p0, 1), m(b_, a, 2, 3, 1), v(b_, a, 2, 3, 1);
    for (int t = 1; t <= 5; ++t) {
      const Matrix grad(b_, a, 2, 3, gradients[static_cast<size_t>(t - 1)], 1);
      b_.adamw(adamw_step(t), p, m, v, grad, {});
    }
    expect_near(p.get(), p_want, 3e-7, "p");
    expect_near(m.get(), m_want, 3e-7, "m");
    expect_near(v.get(), v_want, 3e-7, "v");
  }
}

TEST_F(Update, adamw_equals_its_formula_with_clipping_and_copies) {
  const int64_t n = 20001;
  const double scale = 0.37;
  for (DType a : {DType::f32, DType::f64}) {
    for (DType copy_type : {DType::bf16, DType::f32, DType::f64}) {
      const Matrix p(b_, a, 1, n, random_values(n, 1)), m(b_, a, 1, n), v(b_, a, 1, n), copy(b_, copy_type, 1, n);
      Values want = p.get(), mw(want.size(), 0.0), vw(want.size(), 0.0);
      for (int t = 1; t <= 4; ++t) {
        const Matrix grad(b_, a, 1, n, random_values(n, static_cast<unsigned>(10 + t), std::pow(10.0, t - 3)));
        const Values g = grad.get();
        const AdamwStep s = adamw_step(t, 0.003 * t, 0.1, scale);
        b_.adamw(s, p, m, v, grad, copy);
        for (size_t i = 0; i < want.size(); ++i) {
          const double x = g[i] * scale;
          mw[i] = s.beta1 * mw[i] + (1 - s.beta1) * x;
          vw[i] = s.beta2 * vw[i] + (1 - s.beta2) * x * x;
          want[i] *= 1 - s.lr * s.weight_decay;
          want[i] -= s.lr * (mw[i] / s.bias1) / (std::sqrt(vw[i] / s.bias2) + s.eps);
        }
      }
      expect_near(p.get(), want, 20 * unit(a), "p");
      expect_near(m.get(), mw, 20 * unit(a), "m");
      expect_near(v.get(), vw, 20 * unit(a), "v");
      Values rounded_p = p.get();
      for (double& x : rounded_p) x = rounded(copy_type, x);
      EXPECT_EQ(copy.get(), rounded_p);
      const Matrix grad_as_column(b_, a, n, 1);  // the same dense elements in another shape
      b_.adamw(adamw_step(5), p, m, v, grad_as_column, {});
    }
  }
}

// O117: without gradient, decay shrinks by exactly 1 - lr wd; without decay nothing changes, to the bit.
TEST_F(Update, decay_alone) {
  const Values start = random_values(100, 3);
  const Matrix kept(b_, DType::f32, 10, 10, start), shrunk(b_, DType::f32, 10, 10, start),
      zero(b_, DType::f32, 10, 10);
  const Values before = kept.get();
  const Matrix m1(b_, DType::f32, 10, 10), v1(b_, DType::f32, 10, 10), m2(b_, DType::f32, 10, 10),
      v2(b_, DType::f32, 10, 10);
  b_.adamw(adamw_step(1, 0.01, 0.0), kept, m1, v1, zero, {});
  EXPECT_EQ(kept.get(), before);
  b_.adamw(adamw_step(1, 0.01, 0.1), shrunk, m2, v2, zero, {});
  const Values after = shrunk.get();
  for (size_t i = 0; i < after.size(); ++i)
    EXPECT_EQ(after[i], static_cast<float>(before[i]) * static_cast<float>(1 - 0.001));
  b_.sgd({0.01, 0, 0.0, 1}, kept, {}, zero, {});
  EXPECT_EQ(kept.get(), before);
}

// O116: the first step moves every weight with a gradient by the whole rate.
TEST_F(Update, first_step_moves_by_the_rate) {
  const Matrix p(b_, DType::f32, 1, 4, {1, 1, 1, 1}), m(b_, DType::f32, 1, 4), v(b_, DType::f32, 1, 4);
  const Matrix g(b_, DType::f32, 1, 4, {3, -3, 1e-3, -1e3});
  b_.adamw(adamw_step(1, 0.0025, 0.0), p, m, v, g, {});
  expect_near(p.get(), {0.9975, 1.0025, 0.9975, 1.0025}, 1e-6, "p");
}

TEST_F(Update, sgd_equals_pytorch_and_its_formula) {
  const Values start = {0.436160982f, 1.01701355f, -2.19252682f, 0.212330669f, -0.939496815f, -0.323578268f};
  const std::vector<Values> g = {
      {-0.00105471094f, 0.000823772745f, -0.00052705023f, 0.000810725905f, -0.000804592622f, -0.00105006422f},
      {-0.00109653559f, 0.00352967251f, -0.00444702338f, -0.00950878859f, -0.000561929424f, -0.0143955536f},
      {-0.12132863f, 0.10946735f, -0.0495685302f, 0.0757652521f, -0.0679101348f, 0.0838926882f},
      {0.611307561f, 0.67644608f, 0.412406385f, 0.0261126645f, -0.028180778f, 1.46275175f},
      {37.8889809f, 2.6818099f, 4.01912498f, -6.14844608f, 3.79184771f, 4.94849968f}};
  const Values p_want = {0.0490252301, 0.974221408, -2.23903608, 0.271559566, -0.974987149, -0.40259099};
  const Values v_want = {38.3393898, 3.3823936, 4.34655237, -6.0699749, 3.71054029, 6.32174587};
  const Matrix p(b_, DType::f32, 1, 6, start), v(b_, DType::f32, 1, 6), copy(b_, DType::bf16, 1, 6);
  for (const Values& x : g) b_.sgd({0.01, 0.9, 0, 1}, p, v, Matrix(b_, DType::f32, 1, 6, x), copy);
  expect_near(p.get(), p_want, 3e-7, "p");
  expect_near(v.get(), v_want, 3e-7, "velocity");
  Values rounded_p = p.get();
  for (double& x : rounded_p) x = rounded(DType::bf16, x);
  EXPECT_EQ(copy.get(), rounded_p);

  // decoupled decay, clip factor, no velocity
  const Matrix q(b_, DType::f64, 1, 2, {2, -4});
  b_.sgd({0.1, 0, 0.5, 0.25}, q, {}, Matrix(b_, DType::f64, 1, 2, {8, 16}), {});
  expect_near(q.get(), {2 * 0.95 - 0.2, -4 * 0.95 - 0.4}, 1e-15, "decayed");
  EXPECT_THROW(b_.sgd({0.1, 0.9, 0, 1}, q, {}, q, {}), LogicError);
}

}  // namespace
