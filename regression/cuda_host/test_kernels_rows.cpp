// Row kernels of the cuda backend against the cpu backend: the same bits where work is done element by element or
// column by column, nearly the same where a row's sum is cut differently.
// labels: cuda-host
// seconds: 60
#include "cuda_kit.hpp"

using namespace cuda_kit;

namespace {

struct Size {
  int64_t rows, cols, pad;
};
/// None, one, odd ones, more than a block of elements in a row, many narrow rows, more rows than a block of partial
/// sums.
constexpr Size sizes[] = {{0, 5, 3}, {1, 1, 0}, {3, 33, 5}, {5, 1500, 4}, {700, 3, 2}, {130, 70, 0}};

template <class F>
void for_all(F&& f) {
  for (const DType t : compute_types)
    for (const Size& s : sizes) f(t, s);
}

TEST(CudaRows, PointwiseOperationsHaveTheBitsOfTheCpu) {
  Pair p;
  for_all([&](DType t, const Size& s) {
    const std::string at = text(t, s.rows, s.cols);
    const Twin x = p.random(t, s.rows, s.cols, 1, s.pad, 3), d = p.random(t, s.rows, s.cols, 2, s.pad + 1),
               u = p.random(t, s.rows, s.cols, 3, 0);
    const Twin y = p.blank(t, s.rows, s.cols, s.pad), z = p.blank(t, s.rows, s.cols, 1);
    p.run([&](Backend& be, int i) { be.gelu_forward(x[i], y[i]); });
    p.expect_same(y, "gelu_forward " + at);
    p.run([&](Backend& be, int i) { be.gelu_backward(d[i], x[i], y[i]); });
    p.expect_same(y, "gelu_backward " + at);
    p.run([&](Backend& be, int i) { be.swiglu_forward(x[i], u[i], y[i]); });
    p.expect_same(y, "swiglu_forward " + at);
    p.run([&](Backend& be, int i) { be.swiglu_backward(d[i], x[i], u[i], y[i], z[i]); });
    p.expect_same(y, "swiglu_backward, gate " + at);
    p.expect_same(z, "swiglu_backward, up " + at);
    p.run([&](Backend& be, int i) { be.add(x[i], u[i], y[i]); });
    p.expect_same(y, "add " + at);
    p.run([&](Backend& be, int i) { be.add(y[i], u[i], y[i]); });
    p.expect_same(y, "add in place " + at);
    p.run([&](Backend& be, int i) { be.scale(y[i], 0.37); });
    p.expect_same(y, "scale " + at);
    const Twin factor = p.random(accumulator(t), s.rows, 1, 4, 2);
    p.run([&](Backend& be, int i) { be.scale_rows(x[i], factor[i], y[i]); });
    p.expect_same(y, "scale_rows " + at);
  });
}

TEST(CudaRows, RepeatedRowsAreRead) {
  Pair p;
  const Twin bias = p.random(DType::bf16, 1, 41, 1), x = p.random(DType::bf16, 9, 41, 2),
             y = p.blank(DType::bf16, 9, 41);
  const Twin rows = bias.repeated(9);
  p.run([&](Backend& be, int i) { be.add(x[i], rows[i], y[i]); });
  p.expect_same(y, "add of a repeated row");
}

TEST(CudaRows, AddTakesAllMixturesOfTypes) {
  Pair p;
  for (const DType a : compute_types)
    for (const DType b : compute_types)
      for (const DType c : compute_types) {
        const Twin x = p.random(a, 7, 45, 1), y = p.random(b, 7, 45, 2, 0), out = p.blank(c, 7, 45, 1);
        p.run([&](Backend& be, int i) { be.add(x[i], y[i], out[i]); });
        p.expect_same(out, std::string("add ") + name_of(a) + " " + name_of(b));
      }
  const Twin x = p.random(DType::i64, 2, 300, 1, 0, 1e15), y = p.random(DType::i64, 2, 300, 2, 3, 1e15);
  p.run([&](Backend& be, int i) { be.add(x[i], y[i], x[i]); });
  p.expect_same(x, "add i64");
}

TEST(CudaRows, NormsForwardAndBackward) {
  Pair p;
  for_all([&](DType t, const Size& s) {
    const DType a = accumulator(t);
    for (const NormKind kind : {NormKind::layer, NormKind::rms})
      for (const bool extras : {false, true}) {
        const std::string at = text(t, s.rows, s.cols) + (kind == NormKind::layer ? " layer" : " rms");
        const Twin x = p.random(t, s.rows, s.cols, 1, s.pad, 2), gain = p.random(t, 1, s.cols, 2, 0);
        const Twin bias = extras ? p.random(t, 1, s.cols, 3, 1) : Twin{};
        const Twin y = p.blank(t, s.rows, s.cols, s.pad + 2), stats = p.blank(a, s.rows, 2, 1);
        p.run([&](Backend& be, int i) { be.norm_forward(kind, x[i], gain[i], bias[i], 1e-5, y[i], stats[i]); });
        // a mean near zero cancels: its distance is that of the terms
        p.expect_near(y, Pair::slack(t, s.cols) * 8, "norm_forward y " + at);
        p.expect_near(stats, Pair::slack(a, s.cols) * 8, "norm_forward stats " + at);

        // the same statistics on both sides, so that sums down the columns must agree to the bit
        const Twin given = p.make(a, s.rows, 2, 1, [kind](int64_t r, int64_t c) {
          return c == 1 ? 0.4 + 0.01 * static_cast<double>(r % 7) : kind == NormKind::layer ? 0.1 : 0.0;
        });
        const Twin dy = p.random(t, s.rows, s.cols, 4, s.pad + 1);
        const Twin residual = extras ? p.random(t, s.rows, s.cols, 5, 1) : Twin{};
        const Twin dx = p.blank(t, s.rows, s.cols, s.pad), d_gain = p.random(a, 1, s.cols, 6, 0),
                   d_bias = extras ? p.random(a, 1, s.cols, 7, 0) : Twin{};
        p.run([&](Backend& be, int i) {
          be.norm_backward(kind, dy[i], x[i], gain[i], given[i], residual[i], dx[i], d_gain[i], d_bias[i]);
        });
        p.expect_near(dx, Pair::slack(t, s.cols) * 8, "norm_backward dx " + at);
        p.expect_same(d_gain, "norm_backward d_gain " + at);
        if (extras) p.expect_same(d_bias, "norm_backward d_bias " + at);
      }
  });
}

TEST(CudaRows, ResultsMayLieOverInputsOfNorms) {
  Pair p;
  const int64_t rows = 70, cols = 300;
  for (const DType t : compute_types) {
    const DType a = accumulator(t);
    const Twin dy = p.random(t, rows, cols, 1), x = p.random(t, rows, cols, 2), gain = p.random(t, 1, cols, 3);
    const Twin stats = p.make(a, rows, 2, 0, [](int64_t, int64_t c) { return c == 0 ? 0.0 : 0.9; });
    const Twin d_gain = p.random(a, 1, cols, 4);
    p.run([&](Backend& be, int i) {
      be.norm_backward(NormKind::layer, dy[i], x[i], gain[i], stats[i], {}, dy[i], d_gain[i], {});
    });
    p.expect_near(dy, Pair::slack(t, cols) * 8, "norm_backward in place");
    p.expect_same(d_gain, "norm_backward in place, d_gain");
  }
}

TEST(CudaRows, SumsDownColumnsHaveTheBitsOfTheCpu) {
  Pair p;
  for_all([&](DType t, const Size& s) {
    const Twin x = p.random(t, s.rows, s.cols, 1, s.pad), out = p.random(accumulator(t), 1, s.cols, 2, 0);
    p.run([&](Backend& be, int i) { be.sum_rows(x[i], out[i]); });
    p.expect_same(out, "sum_rows " + text(t, s.rows, s.cols));
  });
}

TEST(CudaRows, SumsAlongRows) {
  Pair p;
  const auto check = [&](DType t, const Size& s) {
    const Twin x = p.random(t, s.rows, s.cols, 1, s.pad), y = p.random(t, s.rows, s.cols, 2, 0);
    const Twin squares = p.blank(DType::f64, s.rows, 1, 2), dots = p.blank(DType::f64, s.rows, 1, 0);
    p.run([&](Backend& be, int i) {
      be.row_squares(x[i], squares[i]);
      be.row_dots(x[i], y[i], dots[i]);
    });
    const double bound = Pair::slack(DType::f64, s.cols), scale = std::sqrt(static_cast<double>(s.cols));
    p.expect_near(squares, bound, "row_squares " + text(t, s.rows, s.cols), scale);
    p.expect_near(dots, bound, "row_dots " + text(t, s.rows, s.cols), scale);
  };
  for_all(check);
  check(DType::bf16, {2, 50000, 7});  // more than one piece
  check(DType::f32, {3, 0, 4});
}

TEST(CudaRows, Rope) {
  Pair p;
  for (const DType t : compute_types)
    for (const bool interleaved : {false, true})
      for (const int64_t stride : {0, 11}) {
        const RopeShape s{3, 6, stride, interleaved};
        const int64_t rows = 37, cols = 3 * (stride ? stride : 6);
        const Twin x = p.random(t, rows, cols, 1, 5), table = p.random(accumulator(t), 20, 6, 2, 1);
        const Twin places = p.make(DType::i32, rows, 1, 0, [](int64_t r, int64_t) { return double(r * 7 % 20); });
        for (const bool inverse : {false, true}) {
          p.run([&](Backend& be, int i) { be.rope(x[i], s, places[i], table[i], inverse); });
          p.expect_same(x, std::string("rope ") + (inverse ? "back" : "forth"));
        }
      }
}

TEST(CudaRows, RopeRefusesAPositionOutsideItsTable) {
  Pair p;
  const Twin x = p.random(DType::f32, 2, 4, 1), table = p.random(DType::f32, 3, 4, 2, 0);
  const Twin places = p.make(DType::i32, 2, 1, 0, [](int64_t r, int64_t) { return r == 0 ? 0.0 : 3.0; });
  p.run([&](Backend& be, int i) {
    EXPECT_THROW(
        {
          be.rope(x[i], {1, 4, 0, false}, places[i], table[i], false);
          be.synchronize();
        },
        LogicError);
  });
}

TEST(CudaRows, DropoutHasTheBitsOfTheCpu) {
  Pair p;
  for_all([&](DType t, const Size& s) {
    const Twin tokens = p.make(DType::i64, s.rows, 1, 2, [](int64_t r, int64_t) { return double(1000003 * r + 17); });
    const Twin x = p.random(t, s.rows, s.cols, 1, s.pad), y = p.blank(t, s.rows, s.cols, 2);
    for (const double rate : {0.0, 0.1, 0.75}) {
      p.run([&](Backend& be, int i) { be.dropout(x[i], {rate, 0x0123456789abcdefu, 9, tokens[i]}, y[i]); });
      p.expect_same(y, "dropout " + text(t, s.rows, s.cols));
    }
    p.run([&](Backend& be, int i) { be.dropout(x[i], {0.5, 77, 1, tokens[i]}, x[i]); });
    p.expect_same(x, "dropout in place " + text(t, s.rows, s.cols));
  });
}

}  // namespace
