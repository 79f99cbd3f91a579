// Row operations on the device: activations, sums along rows, rotary positions. Norms and sums down columns:
// norms.cu.
//
// Everything is computed in A (f32, or f64 for f64 tensors) and rounded once to T. A row's result depends on that row
// alone.
#include "backends/check_shapes.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/numbers.hpp"

namespace orthant {

using namespace cuda;

namespace {

constexpr int row_slot = 6;  // norms.cu has it too: a call's contents are not needed after it

// ---- sums along the rows

/// One piece of a row's products; a row goes by pieces, so that one long row can use the whole device.
template <class T>
struct RowProducts {
  static constexpr int64_t piece = 16384;
  ORTHANT_KERNEL void operator()(const Block& block) const {
    const int64_t r = block.x() / pieces, begin = block.x() % pieces * piece;
    const T *va = a.row(r) + begin, *vb = b.row(r) + begin;
    const double sum = block.sum<double>(min_(piece, n - begin), [&](int64_t c) {
      return static_cast<double>(load(va[c])) * static_cast<double>(load(vb[c]));
    });
    block.each(1, [&](int64_t) { out[block.x() * out_step] = sum; });
  }

  int64_t n, pieces;
  View<const T> a, b;
  double* out;
  int64_t out_step;
};

struct AddPieces {
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const double* from = partial + b.x() * pieces;
    const double sum = b.sum<double>(pieces, [&](int64_t p) { return from[p]; });
    b.each(1, [&](int64_t) { out(b.x(), 0) = sum; });
  }

  int64_t pieces;
  const double* partial;
  View<double> out;
};

void row_products(CudaBackend& be, const Tensor& a, const Tensor& b, const Tensor& out) {
  with_compute(a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t rows = a.rows(), n = a.cols();
    const int64_t pieces = std::max<int64_t>(blocks_of(n, RowProducts<T>::piece), 1);
    const int width = width_for(std::min(n, RowProducts<T>::piece));
    const View<double> to(out);
    if (pieces == 1) {
      launch(be.stream(), {rows}, RowProducts<T>{n, 1, View<const T>(a), View<const T>(b), to.data, to.ld}, width);
      return;
    }
    auto* partial = static_cast<double*>(be.scratch(row_slot, rows * pieces * static_cast<int64_t>(sizeof(double))));
    launch(be.stream(), {rows * pieces}, RowProducts<T>{n, pieces, View<const T>(a), View<const T>(b), partial, 1},
           width);
    launch(be.stream(), {rows}, AddPieces{pieces, partial, to}, width_for(pieces));
  });
}

// ---- element by element

struct GeluOf {
  template <class A>
  ORTHANT_KERNEL A operator()(A v) const {
    return gelu_tanh(v);
  }
};
struct GeluSlope {
  template <class A>
  ORTHANT_KERNEL A operator()(A d, A v) const {
    return d * gelu_tanh_grad(v);
  }
};
struct SwigluOf {
  template <class A>
  ORTHANT_KERNEL A operator()(A gate, A up) const {
    return silu(gate) * up;
  }
};
struct SumOf {
  template <class A>
  ORTHANT_KERNEL A operator()(A a, A b) const {
    return a + b;
  }
};
template <class A>
struct Times {
  ORTHANT_KERNEL A operator()(A v) const { return v * by; }
  A by;
};

template <class T, class F>
struct Map1 {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const { y(r, c) = store<T>(f(load(x(r, c)))); }
  View<const T> x;
  View<T> y;
  F f;
};
template <class T, class F>
struct Map2 {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const { y(r, c) = store<T>(f(load(a(r, c)), load(b(r, c)))); }
  View<const T> a, b;
  View<T> y;
  F f;
};

/// out = f(x), element by element; out may be x.
template <class T, class F>
void map1(cudaStream_t stream, const Tensor& x, const Tensor& out, const F& f) {
  for_cells(stream, out.rows(), out.cols(), all_dense({&x, &out}), Map1<T, F>{View<const T>(x), View<T>(out), f});
}
/// out = f(a, b), element by element; out may be a or b.
template <class T, class F>
void map2(cudaStream_t stream, const Tensor& a, const Tensor& b, const Tensor& out, const F& f) {
  for_cells(stream, out.rows(), out.cols(), all_dense({&a, &b, &out}),
            Map2<T, F>{View<const T>(a), View<const T>(b), View<T>(out), f});
}
template <class F>
void map2_floats(cudaStream_t stream, const Tensor& a, const Tensor& b, const Tensor& out, const F& f) {
  with_compute(out.dtype(), [&](auto tag) { map2<typename decltype(tag)::type>(stream, a, b, out, f); });
}

template <class T>
struct SwigluBackward {
  using A = Accumulator<T>;
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const {
    const A d = load(dy(r, c)), g = load(gate(r, c)), u = load(up(r, c));
    const auto s = orthant::detail::sigmoid_pair(g);
    const A value = g * s.value;
    d_gate(r, c) = store<T>(d * u * (s.value + value * s.complement));
    d_up(r, c) = store<T>(d * value);
  }
  View<const T> dy, gate, up;
  View<T> d_gate, d_up;
};

struct AddIntegers {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const { y(r, c) = a(r, c) + b(r, c); }
  View<const int64_t> a, b;
  View<int64_t> y;
};
/// The sum of differing types, taken in A.
template <class A>
struct AddMixed {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const { y.put(r, c, a.get<A>(r, c) + b.get<A>(r, c)); }
  AnyView a, b, y;
};

template <class T>
struct ScaleRow {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const { y(r, c) = store<T>(load(x(r, c)) * factor(r, 0)); }
  View<const T> x;
  View<const Accumulator<T>> factor;
  View<T> y;
};

/// Turns pair `c` of row `r`, counted over all heads, by the angle of its place; direction -1 turns back.
template <class T>
struct Rotate {
  using A = Accumulator<T>;
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const {
    const int64_t head = c / half, i = c % half, at = position[r];
    need(at >= 0 && at < places, "rope: a position is outside the table");
    T* low = x.row(r) + head * stride + (interleaved ? 2 * i : i);
    T* high = low + (interleaved ? 1 : half);
    const A *cosine = table.row(at), *sine = cosine + half;
    const A a = load(*low), b = load(*high), s = direction * sine[i];
    *low = store<T>(a * cosine[i] - b * s);
    *high = store<T>(b * cosine[i] + a * s);
  }
  int64_t half, stride, places;
  bool interleaved;
  A direction;
  Index position;
  View<const A> table;
  View<T> x;
};

}  // namespace

void CudaBackend::gelu_forward(const Tensor& x, const Tensor& y) {
  check::gelu_forward(x, y);
  with_compute(x.dtype(), [&](auto tag) { map1<typename decltype(tag)::type>(stream_, x, y, GeluOf{}); });
}

void CudaBackend::gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) {
  check::gelu_backward(dy, x, dx);
  map2_floats(stream_, dy, x, dx, GeluSlope{});
}

void CudaBackend::swiglu_forward(const Tensor& gate, const Tensor& up, const Tensor& y) {
  check::swiglu_forward(gate, up, y);
  map2_floats(stream_, gate, up, y, SwigluOf{});
}

void CudaBackend::swiglu_backward(const Tensor& dy, const Tensor& gate, const Tensor& up, const Tensor& d_gate,
                                  const Tensor& d_up) {
  check::swiglu_backward(dy, gate, up, d_gate, d_up);
  with_compute(gate.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_cells(
        stream_, gate.rows(), gate.cols(), all_dense({&dy, &gate, &up, &d_gate, &d_up}),
        SwigluBackward<T>{View<const T>(dy), View<const T>(gate), View<const T>(up), View<T>(d_gate), View<T>(d_up)});
  });
}

void CudaBackend::add(const Tensor& a, const Tensor& b, const Tensor& out) {
  check::add(a, b, out);
  const DType t = out.dtype();
  const bool dense = all_dense({&a, &b, &out});
  if (t == DType::i64) {  // parts of exact sums
    for_cells(stream_, out.rows(), out.cols(), dense,
              AddIntegers{View<const int64_t>(a), View<const int64_t>(b), View<int64_t>(out)});
  } else if (a.dtype() == t && b.dtype() == t) {
    map2_floats(stream_, a, b, out, SumOf{});
  } else {
    const bool wide = a.dtype() == DType::f64 || b.dtype() == DType::f64;
    with_accumulator(wide ? DType::f64 : DType::f32, [&](auto tag) {
      for_cells(stream_, out.rows(), out.cols(), dense,
                AddMixed<typename decltype(tag)::type>{AnyView(a), AnyView(b), AnyView(out)});
    });
  }
}

void CudaBackend::scale(const Tensor& x, double factor) {
  check::scale(x, factor);
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    map1<T>(stream_, x, x, Times<A>{static_cast<A>(factor)});
  });
}

void CudaBackend::row_squares(const Tensor& x, const Tensor& out) {
  check::row_squares(x, out);
  row_products(*this, x, x, out);
}

void CudaBackend::row_dots(const Tensor& a, const Tensor& b, const Tensor& out) {
  check::row_dots(a, b, out);
  row_products(*this, a, b, out);
}

void CudaBackend::scale_rows(const Tensor& x, const Tensor& factor, const Tensor& out) {
  check::scale_rows(x, factor, out);
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_cells(stream_, x.rows(), x.cols(), false,
              ScaleRow<T>{View<const T>(x), View<const Accumulator<T>>(factor), View<T>(out)});
  });
}

void CudaBackend::rope(const Tensor& x, const RopeShape& s, const Tensor& positions, const Tensor& table,
                       bool inverse) {
  check::rope(x, s, positions, table, inverse);
  with_compute(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const int64_t half = s.width / 2;
    for_cells(stream_, x.rows(), s.heads * half, false,
              Rotate<T>{half, s.stride > 0 ? s.stride : s.width, table.rows(), s.interleaved, inverse ? A(-1) : A(1),
                        Index(positions), View<const A>(table), View<T>(x)});
  });
}

}  // namespace orthant
