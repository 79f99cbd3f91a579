// Products: oneDNN's matmul for f32 and bf16, own tiles for f64 and for the canonical product. f16, and bf16 where the
// processor has no product of it, are widened to f32: 11 and 8 bits multiply exactly there.
//
// Row-major c = op(a) op(b); a transpose is a pair of strides, so nothing is moved for it. Primitives are kept by
// shape, strides and types, because making one costs far more than finding it. Both oneDNN interfaces are served:
// 2.x makes a primitive from a descriptor, 3.x from its parts.
#include <omp.h>

#include <array>
#include <cstring>
#include <dnnl.hpp>
#include <string>
#include <unordered_map>

#include "backends/check_shapes.hpp"
#include "backends/cpu/cpu_backend.hpp"
#include "backends/cpu/tile_gemm.hpp"

namespace orthant {
namespace {

using Tag = std::array<int64_t, 8>;  // M, N, K, strides of a, b, c, and the flags packed

struct TagHash {
  size_t operator()(const Tag& tag) const {
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (int64_t x : tag) h = (h ^ static_cast<uint64_t>(x)) * 0xff51afd7ed558ccdu, h ^= h >> 32;
    return h;
  }
};

dnnl::memory::data_type dnnl_type(DType t) {
  return t == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

/// A product as oneDNN wants it: row strides of a and b are (ld, 1), or (1, ld) when transposed.
struct Matmul {
  int64_t m, n, k, lda, ldb, ldc;
  bool transpose_a, transpose_b, accumulate, bias;
  DType type, c_type;

  Tag tag() const {
    return {m,
            n,
            k,
            lda,
            ldb,
            ldc,
            (transpose_a ? 1 : 0) | (transpose_b ? 2 : 0) | (accumulate ? 4 : 0) | (bias ? 8 : 0),
            static_cast<int64_t>(type) * 16 + static_cast<int64_t>(c_type)};
  }
};

dnnl::matmul::primitive_desc describe_product(const Matmul& p, const dnnl::engine& engine) {
  using Desc = dnnl::memory::desc;
  using Dims = dnnl::memory::dims;
  const auto type = dnnl_type(p.type);
  const Desc a(Dims{p.m, p.k}, type, p.transpose_a ? Dims{1, p.lda} : Dims{p.lda, 1});
  const Desc b(Dims{p.k, p.n}, type, p.transpose_b ? Dims{1, p.ldb} : Dims{p.ldb, 1});
  const Desc c(Dims{p.m, p.n}, dnnl_type(p.c_type), Dims{p.ldc, 1});
  const Desc bias(Dims{1, p.n}, type, Dims{p.n, 1});
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
#if DNNL_VERSION_MAJOR >= 3
  return p.bias ? dnnl::matmul::primitive_desc(engine, a, b, bias, c, attr)
                : dnnl::matmul::primitive_desc(engine, a, b, c, attr);
#else
  return dnnl::matmul::primitive_desc(p.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c), attr,
                                      engine);
#endif
}

}  // namespace

struct CpuBackend::Gemm {
  struct Kept {
    dnnl::matmul primitive;
    dnnl::memory a, b, c, bias, scratchpad;
    int64_t scratchpad_bytes = 0;
  };

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::unordered_map<Tag, Kept, TagHash> kept;
  bool bf16 = false;        // oneDNN has a bf16 kernel for this processor
  std::string bf16_kernel;  // its name

  Gemm() {
    // oneDNN refuses bf16 below AVX512 (2.x), or answers with its slow reference loops (3.x)
    try {
      const auto desc =
          describe_product({64, 64, 64, 64, 64, 64, false, false, false, false, DType::bf16, DType::f32}, engine);
      bf16_kernel = desc.impl_info_str();
      bf16 = bf16_kernel.find("ref") == std::string::npos;
    } catch (const dnnl::error& e) {
      if (e.status != dnnl_unimplemented) throw FaultError(std::string("oneDNN cannot be used: ") + e.what());
    }
  }

  Kept& find(const Matmul& p) {
    const Tag tag = p.tag();
    auto it = kept.find(tag);
    if (it != kept.end()) return it->second;
    if (kept.size() >= 4096) kept.clear();  // routed experts ask for ever new shapes
    const auto desc = describe_product(p, engine);
    Kept made;
    made.primitive = dnnl::matmul(desc);
    made.a = dnnl::memory(desc.src_desc(), engine, nullptr);
    made.b = dnnl::memory(desc.weights_desc(), engine, nullptr);
    made.c = dnnl::memory(desc.dst_desc(), engine, nullptr);
    if (p.bias) made.bias = dnnl::memory(desc.bias_desc(), engine, nullptr);
    made.scratchpad = dnnl::memory(desc.scratchpad_desc(), engine, nullptr);
    made.scratchpad_bytes = static_cast<int64_t>(desc.scratchpad_desc().get_size());
    return kept.emplace(tag, std::move(made)).first->second;
  }
};

CpuBackend::CpuBackend()
    : threads_(omp_get_max_threads()), pool_(std::make_shared<Pool>(&account_)), gemm_(std::make_unique<Gemm>()) {}

CpuBackend::~CpuBackend() {
  for (Block& block : scratch_)
    if (block.data) pool_->give(block.data, block.bytes);
  pool_->detach();
}

std::string CpuBackend::describe() const {
  const auto* v = dnnl_version();
  const std::string bf16 = !gemm_->bf16 ? "bf16 rounded, multiplied in fp32"
                           : gemm_->bf16_kernel.find("amx") != std::string::npos
                               ? "bf16 by oneDNN (AMX)"
                               : "bf16 by oneDNN (" + gemm_->bf16_kernel + ")";
  return name() + ": oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." +
         std::to_string(v->patch) + ", " + bf16 + ", " + std::to_string(threads_) +
         (threads_ == 1 ? " thread" : " threads");
}

namespace {

template <class X>
tile::View<X> view(const Tensor& x, bool transpose) {
  return {x.as<X>(), transpose ? 1 : x.ld(), transpose ? x.ld() : 1};
}

template <class T, class X, class C>
void by_tiles(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
              const Tensor& bias, void* memory, int threads) {
  tile::gemm<T, X, C>(c.rows(), c.cols(), transpose_a ? a.rows() : a.cols(), view<X>(a, transpose_a),
                      view<X>(b, transpose_b), c.as<C>(), c.ld(), accumulate, bias ? bias.as<X>() : nullptr,
                      static_cast<T*>(memory), threads, omp_get_thread_num);
}
void by_tiles(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, bool accumulate,
              const Tensor& bias, void* memory, int threads) {
  const auto run = a.dtype() == DType::f64   ? by_tiles<double, double, double>
                   : a.dtype() == DType::f32 ? by_tiles<float, float, float>
                   : a.dtype() == DType::f16 ? (c.dtype() == DType::f32 ? by_tiles<float, f16, float> : by_tiles<float, f16, f16>)
                   : c.dtype() == DType::f32 ? by_tiles<float, bf16, float>
                                             : by_tiles<float, bf16, bf16>;
  run(a, transpose_a, b, transpose_b, c, accumulate, bias, memory, threads);
}

/// A dense f32 tensor in memory that somebody else owns.
Tensor borrowed(void* data, int64_t rows, int64_t cols) {
  return Tensor(nullptr, data, DType::f32, rows, cols, cols);
}

}  // namespace

void CpuBackend::gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
                      bool accumulate, const Tensor& bias) {
  check::gemm(a, transpose_a, b, transpose_b, c, accumulate, bias);
  const int64_t m = c.rows(), n = c.cols(), k = transpose_a ? a.rows() : a.cols();
  if (m == 0 || n == 0) return;
  if (a.dtype() == DType::f64 || k == 0) {  // oneDNN has no f64 and leaves c as it was when K = 0
    void* memory = scratch(0, threads_ * tile::task_elements * 8);
    return by_tiles(a, transpose_a, b, transpose_b, c, accumulate, bias, memory, threads_);
  }
  if (a.dtype() == DType::f16 || (a.dtype() == DType::bf16 && !gemm_->bf16)) {
    const Tensor wide_a = borrowed(scratch(1, a.size() * 4), a.rows(), a.cols());
    const Tensor wide_b = borrowed(scratch(2, b.size() * 4), b.rows(), b.cols());
    CpuBackend::copy(wide_a, a);
    CpuBackend::copy(wide_b, b);
    Tensor wide_bias;
    if (bias) {
      wide_bias = borrowed(scratch(4, n * 4), 1, n);
      CpuBackend::copy(wide_bias, bias);
    }
    const bool direct = c.dtype() == DType::f32;
    const Tensor wide_c = direct ? c : borrowed(scratch(3, c.size() * 4), m, n);
    if (!direct && accumulate) CpuBackend::copy(wide_c, c);
    CpuBackend::gemm(wide_a, transpose_a, wide_b, transpose_b, wide_c, accumulate, wide_bias);
    if (!direct) CpuBackend::copy(c, wide_c);
    return;
  }
  // a leading dim that is never stepped over may be anything; oneDNN wants it no smaller than the row
  const auto ld = [](const Tensor& x) { return x.rows() <= 1 ? x.cols() : x.ld(); };
  const Matmul p{m,         n,           k,           ld(a),      ld(b),
                 ld(c),     transpose_a, transpose_b, accumulate, static_cast<bool>(bias),
                 a.dtype(), c.dtype()};
  try {
    Gemm::Kept& kept = gemm_->find(p);
    kept.a.set_data_handle(a.data());
    kept.b.set_data_handle(b.data());
    kept.c.set_data_handle(c.data());
    kept.scratchpad.set_data_handle(kept.scratchpad_bytes > 0 ? scratch(0, kept.scratchpad_bytes) : nullptr);
    std::unordered_map<int, dnnl::memory> args{{DNNL_ARG_SRC, kept.a},
                                               {DNNL_ARG_WEIGHTS, kept.b},
                                               {DNNL_ARG_DST, kept.c},
                                               {DNNL_ARG_SCRATCHPAD, kept.scratchpad}};
    if (bias) {
      kept.bias.set_data_handle(bias.data());
      args.emplace(DNNL_ARG_BIAS, kept.bias);
    }
    kept.primitive.execute(gemm_->stream, args);
    gemm_->stream.wait();
  } catch (const dnnl::error& e) {
    throw FaultError("oneDNN could not multiply [" + std::to_string(m) + ", " + std::to_string(k) + "] by [" +
                     std::to_string(k) + ", " + std::to_string(n) + "] of " + name_of(a.dtype()) + ": " + e.what());
  }
}

void CpuBackend::gemm_canonical(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                                const Tensor& c) {
  check::gemm_canonical(a, transpose_a, b, transpose_b, c);
  if (c.size() == 0) return;
  // The interface promises bits as of one thread: an element is a fixed chain (tile.hpp), so threads may share the
  // tiles.
  void* memory = scratch(0, threads_ * tile::task_elements * 8);
  by_tiles(a, transpose_a, b, transpose_b, c, false, {}, memory, threads_);
}

}  // namespace orthant
