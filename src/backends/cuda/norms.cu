// Norms of rows on the device, and sums down the columns of a matrix, which the gradients of gain and bias are.
//
// Everything is computed in A (f32, or f64 for f64 tensors) and rounded once to T. A row's result depends on that row
// alone; sums down columns go by blocks of 64 rows added in order, as on the host.
#include "backends/check_shapes.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/numbers.hpp"

namespace orthant {

using namespace cuda;

namespace {

constexpr int row_slot = 6;

// ---- norms

template <class T>
struct NormForward {
  using A = Accumulator<T>;
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const int64_t r = b.x();
    const T *v = x.row(r), *g = gain.data, *add = bias.data;
    const A length = static_cast<A>(max_<int64_t>(n, 1));
    const A mean = layer ? b.sum<A>(n, [&](int64_t c) { return load(v[c]); }) / length : A(0);
    const A square = b.sum<A>(n, [&](int64_t c) {
      const A d = load(v[c]) - mean;
      return d * d;
    }) / length;
    const A inverse = A(1) / sqrt_(square + eps);
    b.each(n, [&](int64_t c) {
      const A scaled = (load(v[c]) - mean) * inverse * load(g[c]);
      y(r, c) = store<T>(add ? scaled + load(add[c]) : scaled);
    });
    b.each(2, [&](int64_t c) { stats(r, c) = c == 0 ? mean : inverse; });
  }

  int64_t n;
  bool layer;
  A eps;
  View<const T> x, gain, bias;
  View<T> y;
  View<A> stats;
};

/// dx = (slope - mean(slope) - xhat mean(slope xhat)) / std with slope = dy gain; the root mean square norm has no
/// mean to take off.
template <class T>
struct NormBackward {
  using A = Accumulator<T>;
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const int64_t r = b.x();
    const T *d = dy.row(r), *v = x.row(r), *g = gain.data, *rest = residual.data ? residual.row(r) : nullptr;
    const A mean = stats(r, 0), inverse = stats(r, 1), length = static_cast<A>(n);
    const auto slope = [&](int64_t c) { return load(d[c]) * load(g[c]); };
    const auto xhat = [&](int64_t c) { return (load(v[c]) - mean) * inverse; };
    const A along = b.sum<A>(n, [&](int64_t c) { return slope(c) * xhat(c); }) / length;
    const A level = layer ? b.sum<A>(n, slope) / length : A(0);
    b.each(n, [&](int64_t c) {
      const A through = inverse * (slope(c) - level - xhat(c) * along);
      dx(r, c) = store<T>(rest ? load(rest[c]) + through : through);
    });
  }

  int64_t n;
  bool layer;
  View<const T> dy, x, gain, residual;
  View<const A> stats;
  View<T> dx;
};

// ---- sums down the columns

/// The partial sums of one block of rows for some columns. F::add(r, c, sums) adds row r's terms to its F::count
/// sums.
template <class F>
struct ColumnParts {
  using A = typename F::A;
  static constexpr int64_t row_block = 64;

  ORTHANT_KERNEL void operator()(const Block& b) const {
    const int64_t across = (n + b.width() - 1) / b.width(), block = b.x() / across,
                  first = b.x() % across * b.width();
    b.each(min_<int64_t>(b.width(), n - first), [&](int64_t i) {
      const int64_t c = first + i, last = min_(rows, (block + 1) * row_block);
      A sum[F::count] = {};
      for (int64_t r = block * row_block; r < last; ++r) terms.add(r, c, sum);
      for (int k = 0; k < F::count; ++k) partial[(block * F::count + k) * n + c] = sum[k];
    });
  }

  int64_t rows, n;
  F terms;
  A* partial;
};

/// out += partial of the first block + of the second + ...; their sum first: out may hold that of earlier
/// micro-batches.
template <class A>
struct AddParts {
  ORTHANT_KERNEL void operator()(int64_t, int64_t c) const {
    A sum = partial[c];
    for (int64_t block = 1; block < blocks; ++block) sum += partial[block * stride + c];
    out[c] += sum;
  }

  const A* partial;
  int64_t blocks, stride;
  A* out;
};

template <class T>
struct PlainTerms {
  using A = Accumulator<T>;
  static constexpr int count = 1;
  ORTHANT_KERNEL void add(int64_t r, int64_t c, A* sum) const { sum[0] += load(x(r, c)); }
  View<const T> x;
};

/// Of the gradients of gain and bias.
template <class T>
struct NormTerms {
  using A = Accumulator<T>;
  static constexpr int count = 2;
  ORTHANT_KERNEL void add(int64_t r, int64_t c, A* sum) const {
    const A d = load(dy(r, c)), h = (load(x(r, c)) - stats(r, 0)) * stats(r, 1);
    sum[0] += d * h;
    sum[1] += d;
  }
  View<const T> dy, x;
  View<const A> stats;
};

/// outs[k] [1, n] += sum over rows of the k-th term; an empty tensor's is not wanted. rows and n are not 0.
template <class F>
void add_columns(CudaBackend& be, int64_t rows, int64_t n, const F& terms,
                 std::initializer_list<const Tensor*> outs) {
  using A = typename F::A;
  const int64_t blocks = blocks_of(rows, ColumnParts<F>::row_block), stride = F::count * n;
  A* partial = static_cast<A*>(be.scratch(row_slot, blocks * stride * static_cast<int64_t>(sizeof(A))));
  launch(be.stream(), {blocks * blocks_of(n, default_width)}, ColumnParts<F>{rows, n, terms, partial});
  int64_t k = 0;
  for (const Tensor* out : outs) {
    if (*out) for_cells(be.stream(), 1, n, true, AddParts<A>{partial + k * n, blocks, stride, out->as<A>()});
    ++k;
  }
}

}  // namespace

void CudaBackend::norm_forward(NormKind kind, const Tensor& x, const Tensor& gain, const Tensor& bias, double eps,
                               const Tensor& y, const Tensor& stats) {
  check::norm_forward(kind, x, gain, bias, eps, y, stats);
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    launch(
        stream_, {x.rows()},
        NormForward<T>{x.cols(), kind == NormKind::layer, static_cast<A>(eps), View<const T>(x), View<const T>(gain),
                       bias ? View<const T>(bias) : View<const T>(), View<T>(y), View<A>(stats)},
        width_for(x.cols()));
  });
}

void CudaBackend::norm_backward(NormKind kind, const Tensor& dy, const Tensor& x, const Tensor& gain,
                                const Tensor& stats, const Tensor& residual, const Tensor& dx, const Tensor& d_gain,
                                const Tensor& d_bias) {
  check::norm_backward(kind, dy, x, gain, stats, residual, dx, d_gain, d_bias);
  if (x.rows() == 0 || x.cols() == 0) return;
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const View<const T> dys(dy), xs(x);
    const View<const A> s(stats);
    // before dx is written, which may lie over dy or x
    add_columns(*this, x.rows(), x.cols(), NormTerms<T>{dys, xs, s}, {&d_gain, &d_bias});
    launch(stream_, {x.rows()},
           NormBackward<T>{x.cols(), kind == NormKind::layer, dys, xs, View<const T>(gain),
                           residual ? View<const T>(residual) : View<const T>(), s, View<T>(dx)},
           width_for(x.cols()));
  });
}

void CudaBackend::sum_rows(const Tensor& x, const Tensor& out) {
  check::sum_rows(x, out);
  if (x.rows() == 0 || x.cols() == 0) return;
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    add_columns(*this, x.rows(), x.cols(), PlainTerms<T>{View<const T>(x)}, {&out});
  });
}

}  // namespace orthant
