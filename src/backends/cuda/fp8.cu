// FP8 on the device: numbers are quantised with the bits of the cpu backend, products are cuBLASLt's (gemm.cu).
//
// Devices before 10.0 multiply FP8 in one form only, both operands contiguous along the sum, with lengths and addresses
// of 16 bytes. Operands that lie otherwise are brought into that form in scratch memory, filled up with zeros, which add
// nothing: the weight for dx, both operands of dW, tokens of an expert whose number is no multiple of 16. A result that
// the library cannot write where it belongs (a gradient inside a bucket, a bias in f32) is summed in scratch memory and
// finished by a kernel, rounded once like the others.
//
// Sums are promoted to f32 (no fast accumulation); what differs from the cpu backend is the order of the sums.
#include "backends/check_shapes.hpp"
#include "backends/cuda/gemm.hpp"
#include "backends/cuda/numbers.hpp"

namespace orthant {

using namespace cuda;

namespace {

constexpr uint32_t infinite_bits = 0x7f800000u;

float largest_of(DType t) { return t == DType::f8e4m3 ? largest_e4m3 : largest_e5m2; }

/// Calls f with the tag of a type that can be quantised.
template <class F>
void with_input(const Tensor& x, F&& f) {
  if (x.dtype() == DType::f32) return f(Tag<float>{});
  f(Tag<bf16>{});
}

ORTHANT_HD uint8_t code_of(float x, bool e4m3) { return e4m3 ? to_f8e4m3(x).bits : to_f8e5m2(x).bits; }

// ---- scales and numbers

/// most[r] = the largest magnitude of row r, as a pattern: those order like magnitudes, and NaN lies above infinity.
template <class T>
struct RowAmax {
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const T* row = x.row(b.x());
    const auto found = b.max<uint32_t>(n, 0u, [&](int64_t c) { return bits_of(load(row[c])) & 0x7fffffffu; });
    b.each(1, [&](int64_t) { most[b.x()] = min_(found, infinite_bits); });
  }
  int64_t n;
  View<const T> x;
  uint32_t* most;
};

struct AmaxOfRows {
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const auto found = b.max<uint32_t>(rows, 0u, [&](int64_t r) { return most[r]; });
    b.each(1, [&](int64_t) { *out = max_(*out, float_of(found)); });
  }
  int64_t rows;
  const uint32_t* most;
  float* out;
};

struct ScaleFromAmax {
  ORTHANT_KERNEL void operator()(const Block& b) const {
    b.each(1, [&](int64_t) { *scale = fp8_scale(*amax, largest, margin, *scale); });
  }
  const float* amax;
  float largest;
  int margin;
  float* scale;
};

struct Inverse {
  ORTHANT_KERNEL void operator()(const Block& b) const {
    b.each(1, [&](int64_t) { *inverse = 1.0f / *scale; });
  }
  const float* scale;
  float* inverse;
};

template <class T>
struct Quantise {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const { q(r, c) = code_of(load(x(r, c)) * *scale, e4m3); }
  bool e4m3;
  const float* scale;
  View<const T> x;
  View<uint8_t> q;
};

/// Some neighbouring blocks of scales of one band of rows, each by its share of the threads.
template <class T>
struct QuantiseBlocks {
  ORTHANT_KERNEL void operator()(const Block& b) const {
    const int64_t groups = (across + together - 1) / together, band = b.x() / groups, first = b.x() % groups * together;
    const int64_t share = b.width() / together, row = band * block_rows, height = min_(block_rows, rows - row);
    auto* most = b.shared<float>(b.width());
    auto* scale = b.shared<float>(together);
    const auto thread = [&](int64_t i, int64_t& block, int64_t& part) {
      // threads side by side read columns side by side: of one block, or of blocks one column wide
      block = block_cols == 1 ? i % together : i / share;
      part = block_cols == 1 ? i / together : i % share;
    };
    const auto over = [&](int64_t block, int64_t part, auto&& f) {
      const int64_t col = (first + block) * block_cols, width = min_(block_cols, cols - col);
      if (width <= 0) return;
      for (int64_t e = part; e < height * width; e += share) f(row + e / width, col + e % width);
    };
    b.each(b.width(), [&](int64_t i) {
      int64_t block, part;
      thread(i, block, part);
      float found = 0;
      over(block, part, [&](int64_t r, int64_t c) {
        const float magnitude = abs_(load(x(r, c)));
        if (magnitude > found) found = magnitude;  // a NaN has no part in it, and stays one
      });
      most[block * share + part] = found;
    });
    b.each(together, [&](int64_t block) {
      if (first + block >= across) return;
      float found = 0;
      for (int64_t p = 0; p < share; ++p) found = max_(found, most[block * share + p]);
      scale[block] = fp8_block_scale(found, largest, mx);
      inverse(band, first + block) = 1.0f / scale[block];
    });
    b.each(b.width(), [&](int64_t i) {
      int64_t block, part;
      thread(i, block, part);
      over(block, part, [&](int64_t r, int64_t c) { q(r, c) = code_of(load(x(r, c)) * scale[block], e4m3); });
    });
  }
  int64_t rows, cols, block_rows, block_cols, across, together;
  float largest;
  bool e4m3, mx;
  View<const T> x;
  View<uint8_t> q;
  View<float> inverse;
};

// ---- operands as cuBLASLt takes them: [outer dim, K], contiguous along K

/// out [rows, cols] = x^T, zeros beyond x's edges; a tile at a time through shared memory, so that both sides are read and
/// written along their rows.
struct TransposeBytes {
  static constexpr int64_t tile = 64, stride = tile + 4;  // columns of a tile fall into different banks

  ORTHANT_KERNEL void operator()(const Block& b) const {
    const int64_t across = (cols + tile - 1) / tile, row = b.x() / across * tile, col = b.x() % across * tile;
    auto* held = b.shared<uint8_t>(tile * stride);
    b.each(tile * tile, [&](int64_t i) {
      const int64_t from = col + i / tile, to = row + i % tile;  // row and column of x
      held[i / tile * stride + i % tile] = from < x_rows && to < x_cols ? x(from, to) : uint8_t{0};
    });
    b.each(tile * tile, [&](int64_t i) {
      const int64_t r = row + i / tile, c = col + i % tile;
      if (r < rows && c < cols) out[r * cols + c] = held[i % tile * stride + i / tile];
    });
  }
  int64_t rows, cols, x_rows, x_cols;
  View<const uint8_t> x;
  uint8_t* out;
};

struct PadBytes {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t c) const { out[r * cols + c] = r < x_rows && c < x_cols ? x(r, c) : uint8_t{0}; }
  int64_t cols, x_rows, x_cols;
  View<const uint8_t> x;
  uint8_t* out;
};

/// The scale of block (o, k) of an operand, whichever way its matrix lies. Blocks beyond its edges have numbers that are
/// zeros, and any scale.
struct ScaleAt {
  ORTHANT_KERNEL float operator()(int64_t o, int64_t k) const {
    if (o >= outer || k >= along) return 1;
    return by_rows ? inverse(k, o) : inverse(o, k);
  }
  int64_t outer, along;
  bool by_rows;
  View<const float> inverse;
};

struct ScalesAlongOuter {  // VEC128_32F: [K / 128, outer dim]
  ORTHANT_KERNEL void operator()(int64_t k, int64_t o) const { out[k * outer + o] = at(o, k); }
  int64_t outer;
  ScaleAt at;
  float* out;
};

struct ScalesAlongSum {  // BLK128x128_32F: [outer dim / 128, K / 128]
  ORTHANT_KERNEL void operator()(int64_t o, int64_t k) const { out[o * along + k] = at(o, k); }
  int64_t along;
  ScaleAt at;
  float* out;
};

struct ScalesInTiles {  // VEC32_UE8M0: tiles of 128 x 4, row by row; beyond the edges the documentation asks for zeros
  ORTHANT_KERNEL void operator()(int64_t o, int64_t k) const {
    const int64_t tile = o / 128 * along + k / 4 * 4, inner = o % 32 * 16 + o % 128 / 32 * 4 + k % 4;
    const bool inside = o < at.outer && k < at.along;
    out[tile * 128 + inner] = inside ? static_cast<uint8_t>(bits_of(at(o, k)) >> 23) : uint8_t{0};
  }
  int64_t along;  // a multiple of 4
  ScaleAt at;
  uint8_t* out;
};

/// c (+)= sums (+ bias), rounded once.
struct Finish {
  ORTHANT_KERNEL void operator()(int64_t r, int64_t col) const {
    float x = sums ? sums[r * ld + col] : 0.0f;
    if (with_bias) x += bias.get<float>(0, col);
    if (accumulate) x += c.get<float>(r, col);
    c.put(r, col, x);
  }
  const float* sums;
  int64_t ld;
  bool with_bias, accumulate;
  AnyView bias, c;
};

int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

bool lies_on(const void* p, int64_t bytes) { return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) == 0; }

}  // namespace

std::string CudaBackend::fp8_problem(std::optional<BlockScale> blocks) const {
  const std::string is = "the device has compute capability " + std::to_string(capability_ / 10) + "." + std::to_string(capability_ % 10);
  const std::string scaled = capability_ >= 89 ? "\"delayed\" or \"current\"" : "";
  if (capability_ < 89) return is + ", and FP8 products begin with 8.9; use precision.compute = \"bf16\"";
  if (!blocks) return {};
  if (*blocks == BlockScale::mx)
    return capability_ >= 100 ? "" : is + ", and scales of 1 x 32 blocks begin with 10.0; use " + scaled + (capability_ == 90 ? ", or \"blockwise\"" : "");
  if (capability_ != 90)
    return is + ", and cuBLASLt has scales of 128 x 128 blocks for 9.0 alone; use " + scaled + (capability_ >= 100 ? ", or \"mxfp8\"" : "");
#if CUDART_VERSION < 12090
  return "scales of 128 x 128 blocks begin with CUDA 12.9, and this program is built with " + std::to_string(CUDART_VERSION / 1000) + "." +
         std::to_string(CUDART_VERSION % 1000 / 10) + "; use " + scaled;
#else
  return {};
#endif
}

void CudaBackend::amax(const Tensor& x, const Tensor& out) {
  check::amax(x, out);
  if (x.size() == 0) return;
  auto* most = static_cast<uint32_t*>(scratch(slot_amax, x.rows() * 4));
  with_input(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(stream_, {x.rows()}, RowAmax<T>{x.cols(), View<const T>(x), most}, width_for(x.cols()));
  });
  launch(stream_, {1}, AmaxOfRows{x.rows(), most, out.as<float>()});
}

void CudaBackend::scale_from_amax(const Tensor& amax, DType format, int margin, const Tensor& scale) {
  check::scale_from_amax(amax, format, margin, scale);
  launch(stream_, {1}, ScaleFromAmax{amax.as<float>(), largest_of(format), margin, scale.as<float>()}, 32);
}

void CudaBackend::quantize(const Tensor& x, const Tensor& scale, const Quantised& out) {
  check::quantize(x, scale, out);
  launch(stream_, {1}, Inverse{scale.as<float>(), out.inverse_scale.as<float>()}, 32);
  with_input(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_cells(stream_, x.rows(), x.cols(), all_dense({&x, &out.q}),
              Quantise<T>{out.q.dtype() == DType::f8e4m3, scale.as<float>(), View<const T>(x), View<uint8_t>(out.q)});
  });
}

void CudaBackend::quantize_blocks(const Tensor& x, BlockScale rule, const Quantised& out) {
  check::quantize_blocks(x, rule, out);
  if (x.size() == 0) return;
  const int64_t bands = out.inverse_scale.rows(), across = out.inverse_scale.cols();
  const int64_t together = out.block_cols == 1 ? 32 : out.block_rows == 1 ? 8 : 1;
  with_input(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(stream_, {bands * blocks_of(across, together)},
           QuantiseBlocks<T>{x.rows(), x.cols(), out.block_rows, out.block_cols, across, together, largest_of(out.q.dtype()),
                             out.q.dtype() == DType::f8e4m3, rule == BlockScale::mx, View<const T>(x), View<uint8_t>(out.q),
                             View<float>(out.inverse_scale)},
           default_width, (default_width + together) * 4 + 16);
  });
}

/// One operand of a product in the library's form; in fp8.cu.
struct CudaBackend::Fp8Operand {
  const void* codes;
  int64_t ld;
  Gemm::Scales form;
  const void* scales;
};

/// `by_rows`: it is summed over its rows. The result is [outer, k] with `outer` and `k` at least those of x.
CudaBackend::Fp8Operand CudaBackend::fp8_operand(const Quantised& x, bool by_rows, int64_t outer, int64_t k, int slot) {
  const int64_t x_outer = by_rows ? x.q.cols() : x.q.rows(), x_k = by_rows ? x.q.rows() : x.q.cols();
  const int64_t along = by_rows ? x.block_rows : x.block_cols, across = by_rows ? x.block_cols : x.block_rows;
  Fp8Operand out{x.q.data(), x.q.ld(), Gemm::scalar, x.inverse_scale.data()};
  if (along == 128 && across == 1) out.form = Gemm::vec128;
  else if (along == 128 && across == 128) out.form = Gemm::block128;
  else if (along == 32 && across == 1) out.form = Gemm::vec32;
  else ORTHANT_ENSURE(along == 0, "gemm_fp8 of the cuda backend: blocks are 1 x 128, 128 x 128 or 1 x 32 along the sum");

  const bool as_it_lies = !by_rows && outer == x_outer && k == x_k && (x.q.ld() % 16 == 0 || outer == 1) && lies_on(x.q.data(), 16);
  const int64_t code_bytes = as_it_lies ? 0 : up(outer * k, 256);
  const int64_t blocks_k = blocks_of(k, std::max<int64_t>(along, 1)), blocks_outer = blocks_of(outer, std::max<int64_t>(across, 1));
  const int64_t along_4 = up(blocks_k, 4);
  const int64_t scale_bytes = out.form == Gemm::vec128     ? blocks_k * outer * 4
                              : out.form == Gemm::block128 ? blocks_outer * along_4 * 4
                              : out.form == Gemm::vec32    ? up(outer, 128) * along_4
                                                           : 0;
  if (code_bytes + scale_bytes == 0) {
    if (outer == 1) out.ld = k;  // never stepped over
    return out;
  }
  auto* room = static_cast<uint8_t*>(scratch(slot, code_bytes + scale_bytes));
  if (!as_it_lies) {
    const View<const uint8_t> from(x.q);
    if (by_rows)
      launch(stream_, {blocks_of(outer, TransposeBytes::tile) * blocks_of(k, TransposeBytes::tile)},
             TransposeBytes{outer, k, x.q.rows(), x.q.cols(), from, room}, default_width, TransposeBytes::tile * TransposeBytes::stride);
    else
      for_cells(stream_, outer, k, false, PadBytes{k, x.q.rows(), x.q.cols(), from, room});
    out.codes = room;
    out.ld = k;
  }
  if (scale_bytes == 0) return out;
  const ScaleAt at{blocks_of(x_outer, across), blocks_of(x_k, along), by_rows, View<const float>(x.inverse_scale)};
  uint8_t* const scales = room + code_bytes;
  out.scales = scales;
  if (out.form == Gemm::vec128)
    for_cells(stream_, blocks_k, outer, false, ScalesAlongOuter{outer, at, reinterpret_cast<float*>(scales)});
  else if (out.form == Gemm::block128)
    for_cells(stream_, blocks_outer, along_4, false, ScalesAlongSum{along_4, at, reinterpret_cast<float*>(scales)});
  else
    for_cells(stream_, up(outer, 128), along_4, false, ScalesInTiles{along_4, at, scales});
  return out;
}

void CudaBackend::gemm_fp8(const Quantised& a, bool transpose_a, const Quantised& b, bool transpose_b, const Tensor& c, bool accumulate,
                           const Tensor& bias) {
  check::gemm_fp8(a, transpose_a, b, transpose_b, c, accumulate, bias);
  if (c.size() == 0) return;
  ORTHANT_ENSURE(a.q.dtype() == DType::f8e4m3 || b.q.dtype() == DType::f8e4m3, "gemm_fp8: cuBLASLt has no product of two matrices in E5M2");
  const int64_t m = c.rows(), n = c.cols(), k = transpose_a ? a.q.rows() : a.q.cols();
  const float* sums = nullptr;
  int64_t ld_sums = 0;
  if (k > 0) {
    // rows of C may be any number but where scales are in blocks, whose layouts ask for multiples of 4
    const int64_t m_full = a.block_rows > 0 ? up(m, 16) : m, n_full = up(n, 16), k_full = up(k, a.block_rows > 0 ? 32 : 16);
    const Fp8Operand x = fp8_operand(a, transpose_a, m_full, k_full, slot_a), y = fp8_operand(b, !transpose_b, n_full, k_full, slot_b);
    ORTHANT_ENSURE(x.form != Gemm::block128 || y.form != Gemm::block128, "gemm_fp8: cuBLASLt has no product of two matrices in blocks of 128 x 128");
    Gemm::Problem p;
    p.m = m_full, p.n = n_full, p.k = k_full;
    p.lda = x.ld, p.ldb = y.ld, p.transpose_b = 1;
    p.a_type = static_cast<int64_t>(a.q.dtype()), p.b_type = static_cast<int64_t>(b.q.dtype());
    p.a_bytes = Gemm::alignment_of(x.codes), p.b_bytes = Gemm::alignment_of(y.codes);
    p.a_scales = x.form, p.b_scales = y.form;
    Gemm::Operands at;
    at.a = x.codes, at.b = y.codes, at.a_scales = x.scales, at.b_scales = y.scales;

    const int64_t ldc = m == 1 ? n : c.ld();
    if (m == m_full && n == n_full && ldc * size_of(c.dtype()) % 16 == 0 && lies_on(c.data(), 16) &&
        (!bias || (bias.dtype() == DType::bf16 && lies_on(bias.data(), 16)))) {
      Gemm::Problem direct = p;
      direct.ldc = ldc, direct.c_type = static_cast<int64_t>(c.dtype()), direct.c_bytes = Gemm::alignment_of(c.data());
      if (bias) direct.bias_bytes = Gemm::alignment_of(bias.data());
      if (Gemm::Plan* plan = gemm_->find(direct)) {
        at.c = c.data(), at.accumulate = accumulate;
        if (bias) at.bias = bias.data();
        gemm_->run(*this, direct, *plan, at);
        return;
      }
    }
    at.c = scratch(slot_c, m_full * n_full * 4);
    p.ldc = ld_sums = n_full, p.c_type = static_cast<int64_t>(DType::f32), p.c_bytes = Gemm::alignment_of(at.c);
    gemm_->run(*this, p, gemm_->need(p), at);
    sums = static_cast<const float*>(at.c);
  }
  const bool with_bias = static_cast<bool>(bias);
  for_cells(stream_, m, n, false, Finish{sums, ld_sums, with_bias, accumulate, AnyView(with_bias ? bias : c), AnyView(c)});
}

}  // namespace orthant
