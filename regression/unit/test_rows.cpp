// Row operations of the cpu backend against plain loops in double, for every type, odd shapes and padded rows.
// labels: smoke asan
#include "ops_helpers.hpp"

using namespace ops;

namespace {

struct Shape {
  int64_t rows, cols, pad;
};
const Shape shapes[] = {{1, 1, 0}, {3, 7, 0}, {5, 64, 9}, {130, 33, 1}, {257, 130, 0}, {0, 8, 0}, {4, 0, 2}};
const DType types[] = {DType::f32, DType::bf16, DType::f64};

Values round_all(DType t, Values v) {
  for (double& x : v) x = rounded(t, x);
  return v;
}
Values random_in(DType t, int64_t n, unsigned seed, double scale = 1) {
  return round_all(t, random_values(n, seed, scale));
}

class Rows : public ::testing::Test {
 protected:
  std::unique_ptr<Backend> owner_ = backend_with(2);
  Backend& b_ = *owner_;
};

struct NormResult {
  Values y, stats, dx, d_gain, d_bias;
};

/// The formulas of a textbook, in double. dx without residual.
NormResult plain_norm(NormKind kind, const Values& x, const Values& gain, const Values& bias, const Values& dy,
                      int64_t rows, int64_t cols, double eps) {
  NormResult r{Values(x.size()), Values(static_cast<size_t>(2 * rows)), Values(x.size()),
               Values(static_cast<size_t>(cols)), Values(static_cast<size_t>(cols))};
  for (int64_t i = 0; i < rows; ++i) {
    const auto at = [&](int64_t c) { return static_cast<size_t>(i * cols + c); };
    double mean = 0, var = 0;
    if (kind == NormKind::layer)
      for (int64_t c = 0; c < cols; ++c) mean += x[at(c)] / static_cast<double>(cols);
    for (int64_t c = 0; c < cols; ++c) var += std::pow(x[at(c)] - mean, 2) / static_cast<double>(cols);
    const double inverse = 1 / std::sqrt(var + eps);
    r.stats[static_cast<size_t>(2 * i)] = mean;
    r.stats[static_cast<size_t>(2 * i + 1)] = inverse;
    double slope = 0, along = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const double h = (x[at(c)] - mean) * inverse, g = gain[static_cast<size_t>(c)], d = dy[at(c)];
      r.y[at(c)] = h * g + bias[static_cast<size_t>(c)];
      r.d_gain[static_cast<size_t>(c)] += d * h;
      r.d_bias[static_cast<size_t>(c)] += d;
      slope += d * g / static_cast<double>(cols);
      along += d * g * h / static_cast<double>(cols);
    }
    for (int64_t c = 0; c < cols; ++c) {
      const double h = (x[at(c)] - mean) * inverse;
      r.dx[at(c)] =
          inverse * (dy[at(c)] * gain[static_cast<size_t>(c)] - (kind == NormKind::layer ? slope : 0) - h * along);
    }
  }
  return r;
}

TEST_F(Rows, norms) {
  for (NormKind kind : {NormKind::layer, NormKind::rms}) {
    for (DType t : types) {
      for (const Shape& s : shapes) {
        SCOPED_TRACE(::testing::Message() << name_of(t) << " " << s.rows << "x" << s.cols);
        const int64_t n = s.rows * s.cols;
        const bool biased = kind == NormKind::layer;
        const Values x = random_in(t, n, 1, 2), gain = random_in(t, s.cols, 2), dy = random_in(t, n, 3),
                     res = random_in(t, n, 4);
        const Values bias = biased ? random_in(t, s.cols, 5) : Values(static_cast<size_t>(s.cols), 0.0);
        const NormResult want = plain_norm(kind, x, gain, bias, dy, s.rows, s.cols, 1e-5);

        const Matrix mx(b_, t, s.rows, s.cols, x, s.pad), mg(b_, t, 1, s.cols, gain), mb(b_, t, 1, s.cols, bias);
        const Matrix my(b_, t, s.rows, s.cols, s.pad), stats(b_, accumulator(t), s.rows, 2);
        b_.norm_forward(kind, mx, mg, biased ? mb.tensor() : Tensor{}, 1e-5, my, stats);
        const double bound = 20 * unit(t);
        expect_near(my.get(), want.y, bound, "y");
        if (s.cols > 0) expect_near(stats.get(), want.stats, 20 * unit(accumulator(t)) * 10, "stats");

        // gradients are added to what is there
        const Matrix mdy(b_, t, s.rows, s.cols, dy, s.pad), mr(b_, t, s.rows, s.cols, res, s.pad),
            dx(b_, t, s.rows, s.cols, s.pad);
        const Matrix d_gain(b_, accumulator(t), 1, s.cols, Values(static_cast<size_t>(s.cols), 0.5));
        const Matrix d_bias(b_, accumulator(t), 1, s.cols, Values(static_cast<size_t>(s.cols), -0.25));
        b_.norm_backward(kind, mdy, mx, mg, stats, {}, dx, d_gain, biased ? d_bias.tensor() : Tensor{});
        expect_near(dx.get(), want.dx, bound * 3, "dx");
        Values sum = want.d_gain, sum_bias = want.d_bias;
        for (double& v : sum) v += 0.5;
        for (double& v : sum_bias) v = biased ? v - 0.25 : -0.25;
        const double many = 100 * unit(accumulator(t));
        expect_near(d_gain.get(), sum, many, "d_gain");
        expect_near(d_bias.get(), sum_bias, many, "d_bias");

        Values with_residual = want.dx;
        for (size_t i = 0; i < with_residual.size(); ++i) with_residual[i] += res[i];
        b_.norm_backward(kind, mdy, mx, mg, stats, mr, mr, d_gain, biased ? d_bias.tensor() : Tensor{});  // in place
        expect_near(mr.get(), with_residual, bound * 3, "dx + residual");
      }
    }
  }
}

/// Directional finite difference of sum(weight * op(x)) in f64 against the op's own backward.
template <class Forward>
void expect_derivative(Forward loss, const Values& at, const Values& gradient, unsigned seed) {
  const Values direction = random_values(static_cast<int64_t>(at.size()), seed);
  const double h = 1e-5;
  Values up = at, down = at;
  double want = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    up[i] += h * direction[i];
    down[i] -= h * direction[i];
    want += gradient[i] * direction[i];
  }
  EXPECT_NEAR((loss(up) - loss(down)) / (2 * h), want, 1e-7 * (1 + std::fabs(want)));
}

double dot(const Values& a, const Values& b) {
  double s = 0;
  for (size_t i = 0; i < a.size(); ++i) s += a[i] * b[i];
  return s;
}

TEST_F(Rows, norm_backward_is_the_derivative) {
  const int64_t rows = 5, cols = 12, n = rows * cols;
  const DType t = DType::f64;
  for (NormKind kind : {NormKind::layer, NormKind::rms}) {
    const bool biased = kind == NormKind::layer;
    const Values x = random_values(n, 1), gain = random_values(cols, 2), bias = random_values(cols, 3),
                 dy = random_values(n, 4);
    const Matrix stats(b_, t, rows, 2), y(b_, t, rows, cols), dx(b_, t, rows, cols), dg(b_, t, 1, cols),
        db(b_, t, 1, cols);
    const auto loss = [&](const Values& xs, const Values& gs, const Values& bs) {
      const Matrix mx(b_, t, rows, cols, xs), mg(b_, t, 1, cols, gs), mb(b_, t, 1, cols, bs);
      b_.norm_forward(kind, mx, mg, biased ? mb.tensor() : Tensor{}, 1e-5, y, stats);
      return dot(y.get(), dy);
    };
    loss(x, gain, bias);
    const Matrix mx(b_, t, rows, cols, x), mg(b_, t, 1, cols, gain), mdy(b_, t, rows, cols, dy);
    b_.norm_backward(kind, mdy, mx, mg, stats, {}, dx, dg, biased ? db.tensor() : Tensor{});
    expect_derivative([&](const Values& v) { return loss(v, gain, bias); }, x, dx.get(), 7);
    expect_derivative([&](const Values& v) { return loss(x, v, bias); }, gain, dg.get(), 8);
    if (biased) expect_derivative([&](const Values& v) { return loss(x, gain, v); }, bias, db.get(), 9);
  }
}

TEST_F(Rows, activations) {
  const auto sigmoid_of = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto gelu_of = [](double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  };
  for (DType t : types) {
    for (const Shape& s : shapes) {
      SCOPED_TRACE(::testing::Message() << name_of(t) << " " << s.rows << "x" << s.cols);
      const int64_t n = s.rows * s.cols;
      const Values x = random_in(t, n, 1, 3), u = random_in(t, n, 2), dy = random_in(t, n, 3);
      const Matrix mx(b_, t, s.rows, s.cols, x, s.pad), mu(b_, t, s.rows, s.cols, u),
          mdy(b_, t, s.rows, s.cols, dy, s.pad);
      const Matrix y(b_, t, s.rows, s.cols, s.pad), d1(b_, t, s.rows, s.cols), d2(b_, t, s.rows, s.cols, s.pad);
      const double bound =
          (t == DType::f64 ? 20 : 4) * unit(t);  // in f64 the reference rounds as much as the operation
      Values gelu, gelu_d, swiglu, gate_d, up_d;
      for (size_t i = 0; i < x.size(); ++i) {
        const double h = 1e-6, g = sigmoid_of(x[i]);
        gelu.push_back(gelu_of(x[i]));
        gelu_d.push_back(dy[i] * (gelu_of(x[i] + h) - gelu_of(x[i] - h)) / (2 * h));
        swiglu.push_back(x[i] * g * u[i]);
        gate_d.push_back(dy[i] * u[i] * (g + x[i] * g * (1 - g)));
        up_d.push_back(dy[i] * x[i] * g);
      }
      b_.gelu_forward(mx, y);
      expect_near(y.get(), gelu, bound, "gelu");
      b_.gelu_backward(mdy, mx, d1);
      expect_near(d1.get(), gelu_d, std::max(bound, 1e-8), "gelu backward");
      b_.swiglu_forward(mx, mu, y);
      expect_near(y.get(), swiglu, bound, "swiglu");
      b_.swiglu_backward(mdy, mx, mu, d1, d2);
      expect_near(d1.get(), gate_d, bound, "swiglu d_gate");
      expect_near(d2.get(), up_d, bound, "swiglu d_up");
      b_.swiglu_backward(mdy, mx, mu, mx, mu);  // in place
      expect_near(mx.get(), gate_d, bound, "swiglu d_gate in place");
      expect_near(mu.get(), up_d, bound, "swiglu d_up in place");
    }
  }
}

TEST_F(Rows, add_and_scale_round_once) {
  const DType all[] = {DType::f32, DType::bf16, DType::f64, DType::f16};
  for (DType ta : all) {
    for (DType tb : all) {
      for (DType to : all) {
        SCOPED_TRACE(::testing::Message() << name_of(ta) << " + " << name_of(tb) << " -> " << name_of(to));
        const int64_t rows = 7, cols = 613, n = rows * cols;
        const Values a = random_in(ta, n, 1), c = random_in(tb, n, 2);
        const Matrix ma(b_, ta, rows, cols, a, 3), mb(b_, tb, rows, cols, c), out(b_, to, rows, cols, 1);
        b_.add(ma, mb, out);
        const Values got = out.get();
        for (size_t i = 0; i < got.size(); ++i) {
          const double sum = a[i] + c[i];
          const double in_a = (ta == DType::f64 || tb == DType::f64)
                                  ? sum
                                  : static_cast<double>(static_cast<float>(a[i]) + static_cast<float>(c[i]));
          ASSERT_EQ(got[i], rounded(to, in_a)) << i;
        }
      }
    }
    if (ta == DType::f16) continue;
    const Values a = random_in(ta, 1000, 1);
    const Matrix ma(b_, ta, 10, 100, a, 5);
    b_.add(ma, ma, ma);
    b_.scale(ma, 0.3);
    const Values got = ma.get();
    for (size_t i = 0; i < got.size(); ++i) {
      const double factor = ta == DType::f64 ? 0.3 : static_cast<double>(0.3f), twice = rounded(ta, 2 * a[i]);
      ASSERT_EQ(got[i],
                rounded(ta, accumulator(ta) == DType::f64 ? twice * factor : static_cast<float>(twice * factor)));
    }
  }
}

TEST_F(Rows, sums) {
  for (DType t : types) {
    for (const Shape& s : shapes) {
      SCOPED_TRACE(::testing::Message() << name_of(t) << " " << s.rows << "x" << s.cols);
      const Values x = random_in(t, s.rows * s.cols, 1);
      Values down(static_cast<size_t>(s.cols), 2.0), square(static_cast<size_t>(s.rows), 0.0);
      for (int64_t r = 0; r < s.rows; ++r) {
        for (int64_t c = 0; c < s.cols; ++c) {
          const double v = x[static_cast<size_t>(r * s.cols + c)];
          down[static_cast<size_t>(c)] += v;
          square[static_cast<size_t>(r)] += v * v;
        }
      }
      const Matrix mx(b_, t, s.rows, s.cols, x, s.pad),
          out(b_, accumulator(t), 1, s.cols, Values(static_cast<size_t>(s.cols), 2.0));
      b_.sum_rows(mx, out);
      expect_near(out.get(), down, 300 * unit(accumulator(t)), "sum_rows");
      const Matrix squares(b_, DType::f64, s.rows, 1, 1);
      b_.row_squares(mx, squares);
      expect_near(squares.get(), square, 1e-14, "row_squares");
    }
  }
  // one long row, over several pieces; squares of floats do not overflow in double
  const Values x = random_in(DType::f32, 100001, 3, 1e30);
  const Matrix mx(b_, DType::f32, 1, 100001, x), squares(b_, DType::f64, 1, 1);
  b_.row_squares(mx, squares);
  long double want = 0;
  for (double v : x) want += static_cast<long double>(v) * v;
  EXPECT_NEAR(squares.get()[0] / static_cast<double>(want), 1, 1e-14);
}

// O047: sums of bf16 values are taken in f32, so small ones are not swallowed.
TEST_F(Rows, bf16_sums_do_not_stall) {
  const Matrix ones(b_, DType::bf16, 512, 3, Values(512 * 3, 1.0)), sum(b_, DType::f32, 1, 3);
  b_.sum_rows(ones, sum);
  EXPECT_EQ(sum.get(), Values(3, 512.0));
  Values small(101, 1.0 / 512);
  small[0] = 1;
  const Matrix column(b_, DType::bf16, 101, 1, small), one(b_, DType::f32, 1, 1);
  b_.sum_rows(column, one);
  EXPECT_EQ(one.get()[0], 1.1953125);
  const Matrix accumulated(b_, DType::f32, 1, 1);
  for (double v : small) b_.add(accumulated, Matrix(b_, DType::bf16, 1, 1, {v}), accumulated);
  EXPECT_EQ(accumulated.get()[0], 1.1953125);
}

TEST_F(Rows, rope_rotates_halves) {
  const int64_t rows = 9, heads = 3, dim = 8, half = dim / 2, width = heads * dim, positions = 20;
  for (DType t : types) {
    Values table;
    for (int64_t p = 0; p < positions; ++p) {
      for (int64_t i = 0; i < half; ++i)
        table.push_back(std::cos(static_cast<double>(p) / static_cast<double>(i + 1)));
      for (int64_t i = 0; i < half; ++i)
        table.push_back(std::sin(static_cast<double>(p) / static_cast<double>(i + 1)));
    }
    Values at, x = random_in(t, rows * width, 1), want(x.size()), back(x.size());
    for (int64_t r = 0; r < rows; ++r) at.push_back(static_cast<double>((r * 7) % positions));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < half; ++i) {
          const size_t low = static_cast<size_t>(r * width + h * dim + i), high = low + static_cast<size_t>(half);
          const double angle = at[static_cast<size_t>(r)] / static_cast<double>(i + 1), c = std::cos(angle),
                       s = std::sin(angle);
          want[low] = x[low] * c - x[high] * s;
          want[high] = x[high] * c + x[low] * s;
          back[low] = x[low] * c + x[high] * s;
          back[high] = x[high] * c - x[low] * s;
        }
      }
    }
    const Matrix mp(b_, DType::i32, rows, 1, at), mt(b_, accumulator(t), positions, dim, table);
    const Matrix forward(b_, t, rows, width, x, 6), inverse(b_, t, rows, width, x);
    b_.rope(forward, {heads, dim}, mp, mt, false);
    b_.rope(inverse, {heads, dim}, mp, mt, true);
    expect_near(forward.get(), want, 3 * unit(t), "rope");
    expect_near(inverse.get(), back, 3 * unit(t), "inverse rope");
    if (t == DType::f64) {  // adjoint: <R x, y> = <x, R' y>
      const Values y = random_values(rows * width, 2);
      const Matrix my(b_, t, rows, width, y);
      b_.rope(my, {heads, dim}, mp, mt, true);
      EXPECT_NEAR(dot(forward.get(), y), dot(x, my.get()), 1e-12);
    }
  }
  const Matrix x(b_, DType::f32, 1, 8), table(b_, DType::f32, 2, 8), outside(b_, DType::i32, 1, 1, {2.0});
  EXPECT_THROW(b_.rope(x, {1, 8}, outside, table, false), LogicError);
}

TEST_F(Rows, rope_of_strided_heads_and_neighbouring_pairs) {
  const int64_t rows = 40, heads = 3, dim = 6, half = dim / 2, stride = 10, first = 4, positions = 9;
  const int64_t width = first + (heads - 1) * stride + dim;  // the last head has nothing behind it
  for (DType t : types) {
    for (bool interleaved : {false, true}) {
      for (bool inverse : {false, true}) {
        SCOPED_TRACE(::testing::Message() << name_of(t) << " interleaved " << interleaved << " inverse " << inverse);
        Values table, at;
        for (int64_t p = 0; p < positions; ++p) {
          for (int64_t i = 0; i < half; ++i) table.push_back(std::cos(0.7 * static_cast<double>(p * (i + 1))));
          for (int64_t i = 0; i < half; ++i) table.push_back(std::sin(0.7 * static_cast<double>(p * (i + 1))));
        }
        for (int64_t r = 0; r < rows; ++r) at.push_back(static_cast<double>(r * 5 % positions));
        const Values x = random_in(t, rows * width, 3);
        Values want = x;  // columns between the heads stay as they are
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t h = 0; h < heads; ++h) {
            for (int64_t i = 0; i < half; ++i) {
              const int64_t head = r * width + first + h * stride;
              const auto low = static_cast<size_t>(head + (interleaved ? 2 * i : i)),
                         high = static_cast<size_t>(head + (interleaved ? 2 * i + 1 : half + i));
              const double angle = 0.7 * (at[static_cast<size_t>(r)] * static_cast<double>(i + 1));
              const double c = std::cos(angle), s = inverse ? -std::sin(angle) : std::sin(angle);
              want[low] = x[low] * c - x[high] * s;
              want[high] = x[high] * c + x[low] * s;
            }
          }
        }
        const Matrix mp(b_, DType::i32, rows, 1, at), mt(b_, accumulator(t), positions, dim, table, 2),
            mx(b_, t, rows, width, x, 1);
        const RopeShape s{heads, dim, stride, interleaved};
        b_.rope(mx.tensor().col_range(first, width - first), s, mp, mt, inverse);
        const Values got = mx.get();
        expect_near(got, want, 3 * unit(t), "rope");
        for (size_t i = 0; i < want.size(); ++i) {
          const auto c = static_cast<int64_t>(i) % width - first;
          if (c < 0 || c % stride >= dim) {
            ASSERT_EQ(got[i], x[i]) << i;
          }
        }
      }
    }
  }
  const Matrix x(b_, DType::f32, 2, 16), table(b_, DType::f32, 4, 6), p(b_, DType::i32, 2, 1);
  EXPECT_THROW(b_.rope(x, {3, 6, 0, false}, p, table, false), LogicError);
  EXPECT_THROW(b_.rope(x, {2, 6, 11, false}, p, table, false), LogicError);
  EXPECT_THROW(b_.rope(x, {2, 6, 4, true}, p, table, false), LogicError);
  b_.rope(x, {2, 6, 10, true}, p, table, false);
}

TEST_F(Rows, scaled_rows_and_dots_of_rows) {
  for (DType t : types) {
    for (const Shape& s : shapes) {
      SCOPED_TRACE(::testing::Message() << name_of(t) << " " << s.rows << "x" << s.cols);
      const DType a = accumulator(t);
      const Values x = random_in(t, s.rows * s.cols, 1), y = random_in(t, s.rows * s.cols, 2),
                   f = random_in(a, s.rows, 3);
      const Matrix mx(b_, t, s.rows, s.cols, x, s.pad), my(b_, t, s.rows, s.cols, y, 2), mf(b_, a, s.rows, 1, f, 1),
          out(b_, t, s.rows, s.cols, 3), dots(b_, DType::f64, s.rows, 1, 1);
      b_.row_dots(mx, my, dots);
      b_.scale_rows(mx, mf, out);
      b_.scale_rows(mx, mf, mx);  // in place
      Values want, want_dots(static_cast<size_t>(s.rows), 0.0);
      for (size_t i = 0; i < x.size(); ++i) {
        const size_t r = i / static_cast<size_t>(s.cols);
        const double product = x[i] * f[r];
        want.push_back(rounded(t, a == DType::f64 ? product : static_cast<double>(static_cast<float>(product))));
        want_dots[r] += x[i] * y[i];
      }
      EXPECT_EQ(out.get(), want);
      EXPECT_EQ(mx.get(), want);
      expect_near(dots.get(), want_dots, 1e-13, "row_dots");
    }
  }
  // in double throughout: squares of large floats do not overflow, and a long sum of bf16 does not stall
  const Matrix large(b_, DType::f32, 1, 3, {1e30, 1, -1e30}),
      dot_of(b_, DType::f64, 1, 1);
  b_.row_dots(large, large, dot_of);
  EXPECT_NEAR(dot_of.get()[0] / 2e60, 1, 1e-6);
  const Matrix ones(b_, DType::bf16, 1, 100001, Values(100001, 1.0)), sum(b_, DType::f64, 1, 1);
  b_.row_dots(ones, ones, sum);
  EXPECT_EQ(sum.get()[0], 100001.0);
  EXPECT_THROW(b_.row_dots(large, ones, sum), LogicError);
  EXPECT_THROW(b_.scale_rows(large, sum, large), LogicError);
}

/// Every result that sums, with these threads, for the rows [first, first + count) of fixed operands.
std::vector<Values> results(int threads, DType t, int64_t first, int64_t count) {
  auto owner = backend_with(threads);
  Backend& b = *owner;
  const int64_t rows = 500, cols = 200;
  const auto part = [&](unsigned seed) {
    const Values all = random_in(t, rows * cols, seed);
    return Values(all.begin() + first * cols, all.begin() + (first + count) * cols);
  };
  const Matrix x(b, t, count, cols, part(1)), dy(b, t, count, cols, part(2)),
      gain(b, t, 1, cols, random_in(t, cols, 3));
  const Matrix y(b, t, count, cols), stats(b, accumulator(t), count, 2), dx(b, t, count, cols),
      dg(b, accumulator(t), 1, cols);
  const Matrix db(b, accumulator(t), 1, cols), sum(b, accumulator(t), 1, cols), squares(b, DType::f64, count, 1);
  b.norm_forward(NormKind::layer, x, gain, gain, 1e-5, y, stats);
  b.norm_backward(NormKind::layer, dy, x, gain, stats, {}, dx, dg, db);
  b.sum_rows(x, sum);
  b.row_squares(x, squares);
  return {y.get(), stats.get(), dx.get(), squares.get(), dg.get(), db.get(), sum.get()};
}

TEST(RowsBits, do_not_depend_on_threads) {
  for (DType t : types) {
    const auto one = results(1, t, 0, 500);
    for (int threads : {2, 3, 7}) EXPECT_EQ(results(threads, t, 0, 500), one) << name_of(t) << " " << threads;
  }
}

TEST(RowsBits, of_a_row_do_not_depend_on_the_others) {
  for (DType t : types) {
    const auto whole = results(3, t, 0, 500), part = results(2, t, 123, 200);
    for (size_t which = 0; which < 4; ++which) {
      const size_t width = whole[which].size() / 500;
      const Values cut(whole[which].begin() + static_cast<int64_t>(123 * width),
                       whole[which].begin() + static_cast<int64_t>(323 * width));
      EXPECT_EQ(part[which], cut) << name_of(t) << " " << which;
    }
  }
}

}  // namespace
