// FP8 on the host: numbers are rounded to the grid of the format and multiplied in f32, where the products of two such numbers
// are exact. What a GPU with FP8 units gives differs by the order of the sums alone.
//
// Scales of blocks are powers of two, so that elements times scales are exact as well and can be multiplied like any matrix. The
// scale of a whole matrix is any number, and is applied to the sums, as cuBLASLt does it.
#include <omp.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backends/check_shapes.hpp"
#include "backends/cpu/cpu_backend.hpp"
#include "backends/cpu/loops.hpp"

namespace orthant {
namespace {

using loops::load;

float largest_of(DType t) { return t == DType::f8e4m3 ? largest_e4m3 : largest_e5m2; }

/// f(pointer of the C++ type of x).
template <class F>
void with_input(const Tensor& x, F&& f) {
  if (x.dtype() == DType::f32) return f(x.as<float>());
  f(x.as<bf16>());
}

uint8_t code_of(float x, bool e4m3) { return e4m3 ? to_f8e4m3(x).bits : to_f8e5m2(x).bits; }

/// Calls f(column of scales, first column, columns) for the blocks of a row.
template <class F>
void over_blocks(int64_t cols, int64_t block_cols, F&& f) {
  for (int64_t b = 0, at = 0; at < cols; ++b, at += block_cols) f(b, at, std::min(block_cols, cols - at));
}

}  // namespace

void CpuBackend::amax(const Tensor& x, const Tensor& out) {
  check::amax(x, out);
  if (x.size() == 0) return;
  constexpr float infinite = std::numeric_limits<float>::infinity();
  std::vector<float> rows(static_cast<size_t>(x.rows()));
  with_input(x, [&](const auto* data) {
    loops::for_rows(threads_, x.rows(), x.cols(), [&](int64_t r) {
      const auto* row = data + r * x.ld();
      uint32_t most = 0;  // magnitudes compare like their patterns, and those of NaN lie above infinity
      for (int64_t c = 0; c < x.cols(); ++c) most = std::max(most, bits_of(load(row[c])) & 0x7fffffffu);
      rows[static_cast<size_t>(r)] = most > bits_of(infinite) ? infinite : float_of(most);
    });
  });
  float& most = *out.as<float>();
  for (float m : rows) most = std::max(most, m);
}

void CpuBackend::scale_from_amax(const Tensor& amax, DType format, int margin, const Tensor& scale) {
  check::scale_from_amax(amax, format, margin, scale);
  float& s = *scale.as<float>();
  s = fp8_scale(*amax.as<float>(), largest_of(format), margin, s);
}

void CpuBackend::quantize(const Tensor& x, const Tensor& scale, const Quantised& out) {
  check::quantize(x, scale, out);
  const float s = *scale.as<float>();
  *out.inverse_scale.as<float>() = 1.0f / s;
  const bool e4m3 = out.q.dtype() == DType::f8e4m3;
  with_input(x, [&](const auto* data) {
    loops::for_spans(threads_, x.rows(), x.cols(), x.dense() && out.q.dense(), [&](int64_t r, int64_t begin, int64_t n) {
      const auto* from = data + r * x.ld() + begin;
      uint8_t* to = out.q.as<uint8_t>() + r * out.q.ld() + begin;
      if (e4m3)
        for (int64_t i = 0; i < n; ++i) to[i] = to_f8e4m3(load(from[i]) * s).bits;
      else
        for (int64_t i = 0; i < n; ++i) to[i] = to_f8e5m2(load(from[i]) * s).bits;
    });
  });
}

void CpuBackend::quantize_blocks(const Tensor& x, BlockScale rule, const Quantised& out) {
  check::quantize_blocks(x, rule, out);
  const bool e4m3 = out.q.dtype() == DType::f8e4m3;
  const float largest = largest_of(out.q.dtype());
  const int64_t bands = out.inverse_scale.rows(), across = out.inverse_scale.cols();
  with_input(x, [&](const auto* data) {
    loops::for_rows(threads_, bands, out.block_rows * x.cols(), [&](int64_t band) {
      const int64_t first = band * out.block_rows, last = std::min(first + out.block_rows, x.rows());
      std::vector<float> scale(static_cast<size_t>(across), 0.0f);
      for (int64_t r = first; r < last; ++r)
        over_blocks(x.cols(), out.block_cols, [&](int64_t b, int64_t at, int64_t n) {
          float& most = scale[static_cast<size_t>(b)];
          for (int64_t c = at; c < at + n; ++c) {
            const float magnitude = abs_(load(data[r * x.ld() + c]));
            if (magnitude > most) most = magnitude;  // a NaN has no part in it, and stays one
          }
        });
      for (int64_t b = 0; b < across; ++b) {
        float& s = scale[static_cast<size_t>(b)];
        s = fp8_block_scale(s, largest, rule == BlockScale::mx);
        out.inverse_scale.as<float>()[band * out.inverse_scale.ld() + b] = 1.0f / s;
      }
      for (int64_t r = first; r < last; ++r)
        over_blocks(x.cols(), out.block_cols, [&](int64_t b, int64_t at, int64_t n) {
          const float s = scale[static_cast<size_t>(b)];
          for (int64_t c = at; c < at + n; ++c)
            out.q.as<uint8_t>()[r * out.q.ld() + c] = code_of(load(data[r * x.ld() + c]) * s, e4m3);
        });
    });
  });
}

/// The matrix as f32 in memory of slot `slot`: with the scales of its blocks, or as it is coded where one scale serves all.
Tensor CpuBackend::widened(const Quantised& x, int slot) {
  const Tensor wide(nullptr, scratch(slot, std::max<int64_t>(x.q.size(), 1) * 4), DType::f32, x.q.rows(), x.q.cols(), x.q.cols());
  const bool e4m3 = x.q.dtype() == DType::f8e4m3, blocks = x.block_rows > 0;
  loops::for_rows(threads_, x.q.rows(), x.q.cols(), [&](int64_t r) {
    const uint8_t* from = x.q.as<uint8_t>() + r * x.q.ld();
    float* to = wide.as<float>() + r * x.q.cols();
    if (e4m3)
      for (int64_t c = 0; c < x.q.cols(); ++c) to[c] = to_float(f8e4m3{from[c]});
    else
      for (int64_t c = 0; c < x.q.cols(); ++c) to[c] = to_float(f8e5m2{from[c]});
    if (!blocks) return;
    const float* inverse = x.inverse_scale.as<float>() + r / x.block_rows * x.inverse_scale.ld();
    over_blocks(x.q.cols(), x.block_cols, [&](int64_t b, int64_t at, int64_t n) {
      for (int64_t c = at; c < at + n; ++c) to[c] *= inverse[b];
    });
  });
  return wide;
}

void CpuBackend::gemm_fp8(const Quantised& a, bool transpose_a, const Quantised& b, bool transpose_b, const Tensor& c, bool accumulate,
                          const Tensor& bias) {
  check::gemm_fp8(a, transpose_a, b, transpose_b, c, accumulate, bias);
  if (c.size() == 0) return;
  const Tensor wide_a = widened(a, 1), wide_b = widened(b, 2);
  const Tensor sums(nullptr, scratch(3, c.size() * 4), DType::f32, c.rows(), c.cols(), c.cols());
  CpuBackend::gemm(wide_a, transpose_a, wide_b, transpose_b, sums, false);
  float factor = 1;
  if (a.block_rows == 0) factor *= *a.inverse_scale.as<float>();
  if (b.block_rows == 0) factor *= *b.inverse_scale.as<float>();
  const auto finish = [&](auto* to, const auto* add) {
    using C = std::remove_pointer_t<decltype(to)>;
    loops::for_rows(threads_, c.rows(), c.cols(), [&](int64_t r) {
      const float* from = sums.as<float>() + r * c.cols();
      C* row = to + r * c.ld();
      for (int64_t i = 0; i < c.cols(); ++i) {
        float x = from[i] * factor;
        if (add) x += load(add[i]);
        if (accumulate) x += load(row[i]);
        row[i] = loops::store<C>(x);
      }
    });
  };
  const auto with_bias = [&](auto* to) {
    if (bias && bias.dtype() == DType::f32) finish(to, bias.as<float>());
    else finish(to, bias ? bias.as<bf16>() : static_cast<bf16*>(nullptr));
  };
  if (c.dtype() == DType::f32) with_bias(c.as<float>());
  else with_bias(c.as<bf16>());
}

}  // namespace orthant
