// Help for tests on meshes: everything a rank needs around a layer or a model, values that no mesh changes, and whole
// tensors put together from the pieces of the ranks.
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "orthant/context.hpp"
#include "orthant/mesh.hpp"

namespace orthant::kit {

inline int world_size() {
  int n = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}
inline int world_rank() {
  int r = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &r);
  return r;
}

/// A number in [-1, 1) as a function of a name and an index alone.
inline double number(const std::string& name, int64_t index) {
  uint64_t h = 1469598103934665603ull;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  h ^= static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15ull;
  for (int round = 0; round < 3; ++round) {
    h ^= h >> 31;
    h *= 0xbf58476d1ce4e5b9ull;
  }
  return static_cast<double>(h >> 40) * 0x1p-23 - 1.0;
}

struct RigOptions {
  std::string backend = "cpu";
  DType compute = DType::f64;
  bool sequence_parallel = false, reproducible = false;
  int64_t sequence = 16;
  Recompute recompute = Recompute::none;
  int slots = 0;
};

/// A rank of a mesh: backend, axes, layout, context, parameters. Weights are `number`s: matrices within 0.4, gains
/// 1 +- 0.5, biases within 0.5, so that nothing is zero or trivially one.
class Rig {
 public:
  Rig(MPI_Comm comm, MeshShape shape, const std::vector<Param>& params, const RigOptions& o)
      : backend(make_backend(o.backend)),
        mesh(comm, shape),
        axes(*backend, mesh),
        layout(shape,
               {mesh.coordinate(AxisName::tp), mesh.coordinate(AxisName::cp), mesh.coordinate(AxisName::pp),
                mesh.coordinate(AxisName::dp)},
               o.sequence_parallel, o.reproducible),
        ctx(*backend, axes, layout, Precision{o.compute}, o.sequence, o.recompute),
        store(*backend, params, layout, Precision{o.compute}, true, o.slots) {
    store.fill([](const Param& p, const Piece& piece, float* out) {
      for (int64_t r = 0; r < piece.rows; ++r)
        for (int64_t c = 0; c < piece.cols; ++c) {
          const double x = number(p.name, (piece.row + r) * p.cols() + piece.col + c);
          *out++ = static_cast<float>(p.init.kind == Init::ones ? 1 + 0.5 * x
                                      : p.dims.size() > 1       ? 0.4 * x
                                                                : 0.5 * x);
        }
    });
    store.zero_gradients();
  }

  std::unique_ptr<Backend> backend;
  Mesh mesh;
  Axes axes;
  Layout layout;
  Context ctx;
  ParamStore store;
};

/// Rows [begin, begin + rows) of the tensor of `number`s called `name`, `cols` wide.
inline Tensor tensor_of_numbers(Backend& be, DType type, const std::string& name, int64_t begin, int64_t rows,
                                int64_t cols) {
  const Tensor x = be.alloc(DType::f64, rows, cols, MemoryKind::workspace);
  {
    Host<double> h(be, x);
    for (int64_t i = 0; i < rows * cols; ++i) h[i] = number(name, begin * cols + i);
  }
  const Tensor out = be.alloc(type, rows, cols, MemoryKind::workspace);
  be.copy(out, x);
  return out;
}

inline std::vector<double> to_host(Backend& be, const Tensor& x) {
  std::vector<double> v(static_cast<size_t>(x.size()));
  if (v.empty()) return v;
  const Tensor dense = be.alloc(DType::f64, x.rows(), x.cols(), MemoryKind::workspace);
  be.copy(dense, x);
  Host<double> h(be, dense);
  std::memcpy(v.data(), h.data(), v.size() * sizeof(double));
  return v;
}

/// The gradient of a parameter's piece; the value of the exact sum in reproducible mode.
inline std::vector<double> gradient(Rig& rig, LocalParam& p) {
  if (p.rows() * p.cols() == 0) return {};
  if (!rig.ctx.reproducible()) return to_host(*rig.backend, p.grad);
  const Tensor g = rig.backend->alloc(DType::f64, p.rows(), p.cols(), MemoryKind::workspace);
  rig.backend->exact_value(p.grad_exact, g);
  return to_host(*rig.backend, g);
}

/// The part of a whole parameter (row-major) that `piece` covers.
inline std::vector<double> part_of(const std::vector<double>& whole, const Param& p, const Piece& piece) {
  std::vector<double> out;
  for (int64_t r = 0; r < piece.rows; ++r)
    for (int64_t c = 0; c < piece.cols; ++c)
      out.push_back(whole[static_cast<size_t>((piece.row + r) * p.cols() + piece.col + c)]);
  return out;
}

inline double largest(const std::vector<double>& v) {
  double m = 0;
  for (double x : v) m = std::max(m, std::abs(x));
  return m;
}

/// Largest |a - b|; infinite when sizes differ or a difference is no number.
inline double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= worst)) worst = std::isnan(d) ? INFINITY : d;
  }
  return worst;
}

/// A micro-batch of sequences [begin, begin + count) of a fixed set. Sequence s counts the tokens t >= s % 4 whose
/// number is no multiple of 5 + s; `valid` is the number that counts in the global batch.
inline bool token_counts(int64_t s, int64_t t) { return t >= s % 4 && t % (5 + s) != 4; }
inline int64_t valid_tokens(int64_t sequences, int64_t length) {
  int64_t n = 0;
  for (int64_t s = 0; s < sequences; ++s)
    for (int64_t t = 0; t < length; ++t) n += token_counts(s, t);
  return n;
}
inline MicroBatch micro_batch(Context& ctx, int64_t begin, int64_t count, int64_t vocab, int64_t valid) {
  MicroBatch mb;
  mb.sequences = count;
  mb.length = ctx.sequence;
  for (Tensor* t : {&mb.ids, &mb.labels, &mb.positions})
    *t = ctx.be.alloc(DType::i32, mb.tokens(), 1, MemoryKind::workspace);
  mb.weights = ctx.be.alloc(ctx.A, mb.tokens(), 1, MemoryKind::workspace);
  const Tensor wide = ctx.be.alloc(DType::f64, mb.tokens(), 1, MemoryKind::workspace);
  {
    Host<int32_t> ids(ctx.be, mb.ids), labels(ctx.be, mb.labels), positions(ctx.be, mb.positions);
    Host<double> weights(ctx.be, wide);
    auto token = [&](int64_t s, int64_t t) {
      return static_cast<int32_t>((number("tokens", s * 1000 + t) + 1) / 2 * static_cast<double>(vocab));
    };
    for (int64_t t = 0; t < mb.length; ++t)
      for (int64_t b = 0; b < count; ++b) {
        const int64_t at = t * count + b, s = begin + b;
        ids[at] = token(s, t);
        labels[at] = token_counts(s, t) ? token(s, t + 1) : -1;
        positions[at] = static_cast<int32_t>(t);
        weights[at] = token_counts(s, t) ? 1.0 / static_cast<double>(valid) : 0.0;
      }
  }
  ctx.be.copy(mb.weights, wide);
  return mb;
}

/// Small sizes that every tp up to 8 divides, with biases wherever the family may have them. For tp above kv_heads
/// ranks share a kv head.
inline ModelConfig small_model(const std::string& family, int64_t vocab = 65, int64_t heads = 4) {
  ModelConfig c;
  c.family = family;
  c.layers = 2;
  c.hidden = 16;
  c.ffn = 24;
  c.heads = heads;
  c.head_dim = family == "qwen3" ? 6 : c.hidden / heads;
  c.kv_heads = family == "gpt2" ? heads : 2;
  c.vocab = vocab;
  c.context = 16;
  c.tie_embeddings = family != "llama";
  c.bias = family == "gpt2";
  c.qkv_bias = family == "llama";
  return c;
}

inline MeshShape mesh_of(const ModelConfig& c, int64_t tp, int64_t dp) {
  MeshShape m;
  m.tp = tp;
  m.dp = dp;
  m.kv_heads = c.kv_heads;
  return m;
}

}  // namespace orthant::kit
