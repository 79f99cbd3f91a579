// Row operations of the host backend: norms, activations, sums over rows and columns, rotary positions.
//
// Everything is computed in A (f32, or f64 for f64 tensors) and rounded once to T. A row's result depends on that row
// alone; sums over rows go by blocks of 64 rows added in order, so they depend on the rows alone and not on the
// threads.
#include <omp.h>

#include "backends/check_shapes.hpp"
#include "backends/cpu/cpu_backend.hpp"
#include "backends/cpu/loops.hpp"

namespace orthant {

using namespace loops;

namespace {

constexpr int row_slot = 6;

/// to[0, n) = from[0, n) in A.
template <class T, class A>
void widen(A* to, const T* from, int64_t n) {
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) to[c] = load(from[c]);
}

bool all_dense(std::initializer_list<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor* t) { return t->dense(); });
}

/// out = f(in), element by element; out may be in.
template <class T, class F>
void map1(int threads, const Tensor& in, const Tensor& out, F f) {
  const T* x = in.as<T>();
  T* y = out.as<T>();
  const int64_t ld_x = in.ld(), ld_y = out.ld();
  for_spans(threads, out.rows(), out.cols(), all_dense({&in, &out}), [=](int64_t r, int64_t begin, int64_t count) {
    const T* xr = x + r * ld_x + begin;
    T* yr = y + r * ld_y + begin;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) yr[c] = store<T>(f(load(xr[c])));
  });
}

/// out = f(a, b), element by element; out may be a or b.
template <class T, class F>
void map2(int threads, const Tensor& a, const Tensor& b, const Tensor& out, F f) {
  const T *pa = a.as<T>(), *pb = b.as<T>();
  T* y = out.as<T>();
  const int64_t ld_a = a.ld(), ld_b = b.ld(), ld_y = out.ld();
  for_spans(threads, out.rows(), out.cols(), all_dense({&a, &b, &out}), [=](int64_t r, int64_t begin, int64_t count) {
    const T *ar = pa + r * ld_a + begin, *br = pb + r * ld_b + begin;
    T* yr = y + r * ld_y + begin;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) yr[c] = store<T>(f(load(ar[c]), load(br[c])));
  });
}

/// a + b of differing types, in A through short buffers, so that not every triple of types needs a loop.
template <class A>
void add_mixed(int threads, const Tensor& a, const Tensor& b, const Tensor& out) {
  for_spans(threads, out.rows(), out.cols(), all_dense({&a, &b, &out}), [&](int64_t r, int64_t begin, int64_t count) {
    constexpr int64_t chunk = 512;
    A left[chunk], right[chunk];
    for (int64_t done = 0; done < count; done += chunk) {
      const int64_t at = begin + done, n = std::min(chunk, count - done);
      with_compute(a.dtype(),
                 [&](auto tag) { widen(left, a.as<typename decltype(tag)::type>() + r * a.ld() + at, n); });
      with_compute(b.dtype(),
                 [&](auto tag) { widen(right, b.as<typename decltype(tag)::type>() + r * b.ld() + at, n); });
      with_compute(out.dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        T* y = out.as<T>() + r * out.ld() + at;
        for (int64_t c = 0; c < n; ++c) y[c] = store<T>(left[c] + right[c]);
      });
    }
  });
}

/// Bytes of working memory of row_products.
int64_t product_bytes(const Tensor& x) {
  return (x.rows() * ((x.cols() + span - 1) / span) + 1) * static_cast<int64_t>(sizeof(double));
}

/// out [rows, 1] (f64) = sum of a * b of each row. A row goes by pieces of `span` columns added in order, so that one
/// long row can use every thread.
template <class T>
void row_products(int threads, const Tensor& a, const Tensor& b, const Tensor& out, double* partial) {
  const int64_t pieces = (a.cols() + span - 1) / span;
  for_rows(threads, a.rows() * pieces, std::min(span, a.cols()), [&](int64_t p) {
    const int64_t r = p / pieces, begin = p % pieces * span;
    const T *va = a.as<T>() + r * a.ld() + begin, *vb = b.as<T>() + r * b.ld() + begin;
    partial[p] = lane_sum<double>(std::min(span, a.cols() - begin), [va, vb](int64_t c) {
      return static_cast<double>(load(va[c])) * static_cast<double>(load(vb[c]));
    });
  });
  for (int64_t r = 0; r < a.rows(); ++r) {
    double sum = 0;
    for (int64_t p = 0; p < pieces; ++p) sum += partial[r * pieces + p];
    out.as<double>()[r * out.ld()] = sum;
  }
}

/// Turns the pairs (low[i step], high[i step]) by the angle of pair i; direction -1 turns back.
template <int step, class T, class A>
void rotate(T* low, T* high, int64_t pairs, const A* cosine, const A* sine, A direction) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    const A a = load(low[step * i]), b = load(high[step * i]), s = direction * sine[i];
    low[step * i] = store<T>(a * cosine[i] - b * s);
    high[step * i] = store<T>(b * cosine[i] + a * s);
  }
}

}  // namespace

void CpuBackend::norm_forward(NormKind kind, const Tensor& x, const Tensor& gain, const Tensor& bias, double eps,
                              const Tensor& y, const Tensor& stats) {
  check::norm_forward(kind, x, gain, bias, eps, y, stats);
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const int64_t n = x.cols();
    const A length = static_cast<A>(std::max<int64_t>(n, 1));
    // gain and bias once in A, then one row for each thread
    A* g = static_cast<A*>(scratch(row_slot, (threads_ + 2) * n * static_cast<int64_t>(sizeof(A)) + 64));
    A *b = g + n, *buffers = b + n;
    widen(g, gain.as<T>(), n);
    const bool biased = static_cast<bool>(bias);
    if (biased) widen(b, bias.as<T>(), n);
    for_rows(threads_, x.rows(), n, [&](int64_t r) {
      A* v = buffers + omp_get_thread_num() * n;
      widen(v, x.as<T>() + r * x.ld(), n);
      A mean = 0;
      if (kind == NormKind::layer) {
        mean = lane_sum<A>(n, [=](int64_t c) { return v[c]; }) / length;
#pragma omp simd
        for (int64_t c = 0; c < n; ++c) v[c] -= mean;
      }
      const A square = lane_sum<A>(n, [=](int64_t c) { return v[c] * v[c]; }) / length;
      const A inverse = A(1) / sqrt_(square + static_cast<A>(eps));
      T* yr = y.as<T>() + r * y.ld();
      if (biased) {
#pragma omp simd
        for (int64_t c = 0; c < n; ++c) yr[c] = store<T>(v[c] * inverse * g[c] + b[c]);
      } else {
#pragma omp simd
        for (int64_t c = 0; c < n; ++c) yr[c] = store<T>(v[c] * inverse * g[c]);
      }
      A* s = stats.as<A>() + r * stats.ld();
      s[0] = mean;
      s[1] = inverse;
    });
  });
}

void CpuBackend::norm_backward(NormKind kind, const Tensor& dy, const Tensor& x, const Tensor& gain,
                               const Tensor& stats, const Tensor& residual, const Tensor& dx, const Tensor& d_gain,
                               const Tensor& d_bias) {
  check::norm_backward(kind, dy, x, gain, stats, residual, dx, d_gain, d_bias);
  if (x.rows() == 0 || x.cols() == 0) return;
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const int64_t n = x.cols(), rows = x.rows(), blocks = (rows + row_block - 1) / row_block;
    const bool with_residual = static_cast<bool>(residual), layer = kind == NormKind::layer;
    // gain in A; for each block the partial sums of d_gain and d_bias; for each thread two rows
    A* g = static_cast<A*>(
        scratch(row_slot, (1 + 2 * blocks + 2 * threads_) * n * static_cast<int64_t>(sizeof(A)) + 64));
    A *partials = g + n, *buffers = partials + 2 * blocks * n;
    widen(g, gain.as<T>(), n);
    for_rows(threads_, blocks, row_block * n, [&](int64_t block) {
      A *xhat = buffers + omp_get_thread_num() * 2 * n, *slope = xhat + n;
      A *sum_gain = partials + block * 2 * n, *sum_bias = sum_gain + n;
      std::fill(sum_gain, sum_gain + 2 * n, A(0));
      for (int64_t r = block * row_block; r < std::min(rows, (block + 1) * row_block); ++r) {
        const T *dyr = dy.as<T>() + r * dy.ld(), *xr = x.as<T>() + r * x.ld();
        const A* s = stats.as<A>() + r * stats.ld();
        const A mean = s[0], inverse = s[1];
#pragma omp simd
        for (int64_t c = 0; c < n; ++c) {
          const A d = load(dyr[c]), h = (load(xr[c]) - mean) * inverse;
          xhat[c] = h;
          slope[c] = d * g[c];
          sum_gain[c] += d * h;
          sum_bias[c] += d;
        }
        // dx = (slope - mean(slope) - xhat mean(slope xhat)) / std; the root mean square norm has no mean to take off
        const A along = lane_sum<A>(n, [=](int64_t c) { return slope[c] * xhat[c]; }) / static_cast<A>(n);
        const A level = layer ? lane_sum<A>(n, [=](int64_t c) { return slope[c]; }) / static_cast<A>(n) : A(0);
        T* dxr = dx.as<T>() + r * dx.ld();
        if (with_residual) {
          const T* rr = residual.as<T>() + r * residual.ld();
#pragma omp simd
          for (int64_t c = 0; c < n; ++c)
            dxr[c] = store<T>(load(rr[c]) + inverse * (slope[c] - level - xhat[c] * along));
        } else {
#pragma omp simd
          for (int64_t c = 0; c < n; ++c) dxr[c] = store<T>(inverse * (slope[c] - level - xhat[c] * along));
        }
      }
    });
    add_partials(threads_, partials, blocks, 2 * n, n, d_gain.as<A>());
    if (d_bias) add_partials(threads_, partials + n, blocks, 2 * n, n, d_bias.as<A>());
  });
}

void CpuBackend::gelu_forward(const Tensor& x, const Tensor& y) {
  check::gelu_forward(x, y);
  with_compute(x.dtype(), [&](auto tag) {
    map1<typename decltype(tag)::type>(threads_, x, y, [](auto v) { return gelu_tanh(v); });
  });
}

void CpuBackend::gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) {
  check::gelu_backward(dy, x, dx);
  with_compute(x.dtype(), [&](auto tag) {
    map2<typename decltype(tag)::type>(threads_, dy, x, dx, [](auto d, auto v) { return d * gelu_tanh_grad(v); });
  });
}

void CpuBackend::swiglu_forward(const Tensor& gate, const Tensor& up, const Tensor& y) {
  check::swiglu_forward(gate, up, y);
  with_compute(gate.dtype(), [&](auto tag) {
    map2<typename decltype(tag)::type>(threads_, gate, up, y, [](auto g, auto u) { return silu(g) * u; });
  });
}

void CpuBackend::swiglu_backward(const Tensor& dy, const Tensor& gate, const Tensor& up, const Tensor& d_gate,
                                 const Tensor& d_up) {
  check::swiglu_backward(dy, gate, up, d_gate, d_up);
  with_compute(gate.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const bool dense = all_dense({&dy, &gate, &up, &d_gate, &d_up});
    for_spans(threads_, gate.rows(), gate.cols(), dense, [&](int64_t r, int64_t begin, int64_t count) {
      const T* d = dy.as<T>() + r * dy.ld() + begin;
      const T *g = gate.as<T>() + r * gate.ld() + begin, *u = up.as<T>() + r * up.ld() + begin;
      T *dg = d_gate.as<T>() + r * d_gate.ld() + begin, *du = d_up.as<T>() + r * d_up.ld() + begin;
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) {
        const A dv = load(d[c]), gv = load(g[c]), uv = load(u[c]);
        const auto s = detail::sigmoid_pair(gv);
        const A value = gv * s.value;
        dg[c] = store<T>(dv * uv * (s.value + value * s.complement));
        du[c] = store<T>(dv * value);
      }
    });
  });
}

void CpuBackend::add(const Tensor& a, const Tensor& b, const Tensor& out) {
  check::add(a, b, out);
  const DType t = out.dtype();
  if (t == DType::i64) {  // parts of exact sums
    for_spans(threads_, out.rows(), out.cols(), all_dense({&a, &b, &out}), [&](int64_t r, int64_t begin, int64_t count) {
      const int64_t *left = a.as<int64_t>() + r * a.ld() + begin, *right = b.as<int64_t>() + r * b.ld() + begin;
      int64_t* y = out.as<int64_t>() + r * out.ld() + begin;
      for (int64_t i = 0; i < count; ++i) y[i] = left[i] + right[i];
    });
  } else if (a.dtype() == t && b.dtype() == t) {
    with_compute(t, [&](auto tag) {
      map2<typename decltype(tag)::type>(threads_, a, b, out, [](auto l, auto r) { return l + r; });
    });
  } else if (a.dtype() == DType::f64 || b.dtype() == DType::f64) {
    add_mixed<double>(threads_, a, b, out);
  } else {
    add_mixed<float>(threads_, a, b, out);
  }
}

void CpuBackend::scale(const Tensor& x, double factor) {
  check::scale(x, factor);
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto by = static_cast<Accumulator<T>>(factor);
    map1<T>(threads_, x, x, [by](auto v) { return v * by; });
  });
}

void CpuBackend::sum_rows(const Tensor& x, const Tensor& out) {
  check::sum_rows(x, out);
  if (x.rows() == 0 || x.cols() == 0) return;
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const int64_t n = x.cols(), rows = x.rows(), blocks = (rows + row_block - 1) / row_block;
    A* partials = static_cast<A*>(scratch(row_slot, blocks * n * static_cast<int64_t>(sizeof(A))));
    for_rows(threads_, blocks, row_block * n, [&](int64_t block) {
      A* sum = partials + block * n;
      std::fill(sum, sum + n, A(0));
      for (int64_t r = block * row_block; r < std::min(rows, (block + 1) * row_block); ++r) {
        const T* xr = x.as<T>() + r * x.ld();
#pragma omp simd
        for (int64_t c = 0; c < n; ++c) sum[c] += load(xr[c]);
      }
    });
    add_partials(threads_, partials, blocks, n, n, out.as<A>());
  });
}

void CpuBackend::row_squares(const Tensor& x, const Tensor& out) {
  check::row_squares(x, out);
  double* partial = static_cast<double*>(scratch(row_slot, product_bytes(x)));
  with_compute(x.dtype(), [&](auto tag) { row_products<typename decltype(tag)::type>(threads_, x, x, out, partial); });
}

void CpuBackend::row_dots(const Tensor& a, const Tensor& b, const Tensor& out) {
  check::row_dots(a, b, out);
  double* partial = static_cast<double*>(scratch(row_slot, product_bytes(a)));
  with_compute(a.dtype(),
               [&](auto tag) { row_products<typename decltype(tag)::type>(threads_, a, b, out, partial); });
}

void CpuBackend::scale_rows(const Tensor& x, const Tensor& factor, const Tensor& out) {
  check::scale_rows(x, factor, out);
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const int64_t n = x.cols();
    for_rows(threads_, x.rows(), n, [&](int64_t r) {
      const T* from = x.as<T>() + r * x.ld();
      T* to = out.as<T>() + r * out.ld();
      const A by = factor.as<A>()[r * factor.ld()];
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) to[c] = store<T>(load(from[c]) * by);
    });
  });
}

void CpuBackend::rope(const Tensor& x, const RopeShape& s, const Tensor& positions, const Tensor& table,
                      bool inverse) {
  check::rope(x, s, positions, table, inverse);
  const Index position(positions);
  for (int64_t r = 0; r < position.size(); ++r) {
    ORTHANT_ENSURE(
        position[r] >= 0 && position[r] < table.rows(),
        "rope: position " + std::to_string(position[r]) + " is outside the table of " + std::to_string(table.rows()));
  }
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const int64_t half = s.width / 2, stride = s.stride > 0 ? s.stride : s.width;
    const A direction = inverse ? A(-1) : A(1);
    for_rows(threads_, x.rows(), s.heads * s.width, [&](int64_t r) {
      const A *cosine = table.as<A>() + position[r] * table.ld(), *sine = cosine + half;
      T* head = x.as<T>() + r * x.ld();
      for (int64_t h = 0; h < s.heads; ++h, head += stride) {
        if (s.interleaved)
          rotate<2>(head, head + 1, half, cosine, sine, direction);
        else
          rotate<1>(head, head + half, half, cosine, sine, direction);
      }
    });
  });
}

}  // namespace orthant
