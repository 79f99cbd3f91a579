// Help for tests on meshes: everything a rank needs around a layer or a model, values that no mesh changes, and whole
// tensors put together from the pieces of the ranks.
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/context_cut.hpp"
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
  ContextMethod method = ContextMethod::ring;
  int64_t chunks = 1;
  double dropout = 0;  ///< as in training, with seed 7 and step 1
};

/// A rank of a mesh: backend, axes, layout, context, parameters. Weights are `number`s: matrices within 0.4, gains
/// 1 +- 0.5, biases within 0.5 (0.1 for those of a choice), so that nothing is zero or trivially one.
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
    ctx.context_method = o.method;
    ctx.chunks = o.chunks;
    ctx.dropout = o.dropout;
    ctx.seed = 7;
    ctx.step = 1;
    store.fill([](const Param& p, const Piece& piece, float* out) {
      for (int64_t r = 0; r < piece.rows; ++r)
        for (int64_t c = 0; c < piece.cols; ++c) {
          const double x = number(p.name, (piece.row + r) * p.cols() + piece.col + c);
          *out++ = static_cast<float>(p.init.kind == Init::ones ? 1 + 0.5 * x
                                      : p.dims.size() > 1       ? 0.4 * x
                                      : p.trained               ? 0.5 * x
                                                                : 0.1 * x);
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

/// The gradient of a parameter's piece, nothing where it is not trained; the value of the exact sum in reproducible mode.
inline std::vector<double> gradient(Rig& rig, LocalParam& p) {
  if (p.rows() * p.cols() == 0 || !p.param.trained) return {};
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

/// Whether a token of the fixed set counts: in sequence s those at t >= s % 4 whose place leaves no remainder 4 when
/// divided by 5 + s.
inline bool token_counts(int64_t s, int64_t t) { return t >= s % 4 && t % (5 + s) != 4; }
inline int64_t valid_tokens(int64_t sequences, int64_t length) {
  int64_t n = 0;
  for (int64_t s = 0; s < sequences; ++s)
    for (int64_t t = 0; t < length; ++t) n += token_counts(s, t);
  return n;
}

/// Id of token t of sequence s of the fixed set.
inline int32_t fixed_token(int64_t s, int64_t t, int64_t vocab) {
  return static_cast<int32_t>((number("tokens", s * 1000 + t) + 1) / 2 * static_cast<double>(vocab));
}

/// What is said of token t of sequence s; the defaults are the fixed set.
struct Tokens {
  std::function<int32_t(int64_t s, int64_t t, int64_t vocab)> id = fixed_token;
  std::function<bool(int64_t s, int64_t t)> counts = token_counts;
  std::function<int64_t(int64_t s, int64_t t)> start;  ///< place of the first token of its document; none: no masks
  bool reset_positions = false;                        ///< positions count from `start`
  int64_t valid(int64_t sequences, int64_t length) const {
    int64_t n = 0;
    for (int64_t s = 0; s < sequences; ++s)
      for (int64_t t = 0; t < length; ++t) n += counts(s, t);
    return n;
  }
};

/// A micro-batch of sequences [begin, begin + count), on this rank of cp; `valid` is the number of tokens that count
/// in the global batch. Places are there where something is dropped.
inline MicroBatch micro_batch(Context& ctx, int64_t begin, int64_t count, int64_t vocab, int64_t valid,
                              const Tokens& tokens = {}) {
  MicroBatch mb;
  mb.sequences = count;
  mb.runs = context_runs(ctx.sequence, ctx.layout.shape().cp, ctx.layout.at().cp);
  for (const Range& run : mb.runs) mb.length += run.size;
  const int64_t whole = ctx.sequence * count;
  const auto column = [&](DType type, int64_t rows) { return ctx.be.alloc(type, rows, 1, MemoryKind::workspace); };
  for (Tensor* t : {&mb.ids, &mb.labels, &mb.positions}) *t = column(DType::i32, mb.tokens());
  mb.weights = column(ctx.A, mb.tokens());
  const Tensor wide = column(DType::f64, mb.tokens());
  {
    Host<int32_t> ids(ctx.be, mb.ids), labels(ctx.be, mb.labels), positions(ctx.be, mb.positions);
    Host<double> weights(ctx.be, wide);
    int64_t at = 0;
    for (const Range& run : mb.runs)
      for (int64_t t = run.begin; t < run.begin + run.size; ++t)
        for (int64_t s = begin; s < begin + count; ++s, ++at) {
          const bool counts = tokens.counts(s, t);
          ids[at] = tokens.id(s, t, vocab);
          labels[at] = counts ? tokens.id(s, t + 1, vocab) : -1;
          positions[at] = static_cast<int32_t>(t - (tokens.reset_positions ? tokens.start(s, t) : 0));
          weights[at] = counts ? ctx.loss_scale / static_cast<double>(valid) : 0.0;
        }
  }
  ctx.be.copy(mb.weights, wide);

  /// `value(s, t)` of the tokens at `runs`.
  const auto fill = [&](auto type, const Tensor& x, const std::vector<Range>& runs, const auto& value) {
    Host<decltype(type)> h(ctx.be, x);
    int64_t at = 0;
    for (const Range& run : runs)
      for (int64_t t = run.begin; t < run.begin + run.size; ++t)
        for (int64_t s = begin; s < begin + count; ++s) h[at++] = static_cast<decltype(type)>(value(s, t));
  };
  const std::vector<Range> all = {{0, ctx.sequence}};
  if (tokens.start) {
    fill(int32_t{}, mb.starts = column(DType::i32, mb.tokens()), mb.runs, tokens.start);
    fill(int32_t{}, mb.whole_starts = column(DType::i32, whole), all, tokens.start);
  }
  if (ctx.dropout > 0) {
    const auto place = [&](int64_t s, int64_t t) { return s * ctx.sequence + t; };
    fill(int64_t{}, mb.places = column(DType::i64, mb.tokens()), mb.runs, place);
    fill(int64_t{}, mb.whole_places = column(DType::i64, whole), all, place);
  }
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
  if (family == "deepseek") {
    c.mla = {.q_lora_rank = 12, .kv_lora_rank = 10, .nope_dim = 6, .rope_dim = 4, .v_dim = 8};
    c.head_dim = c.mla.rope_dim;
    c.kv_heads = heads;
    c.moe = {.experts = 8, .top_k = 3, .ffn = 16, .shared_experts = 1, .first_dense_layers = 1};
    c.moe.sigmoid = true;
    c.moe.groups = 4;
    c.moe.top_groups = 2;
    c.moe.scale = 1.5;
  }
  if (family == "mixtral") c.moe = {.experts = 4, .top_k = 2, .ffn = 24};
  return c;
}

inline MeshShape mesh_of(const ModelConfig& c, int64_t tp, int64_t dp, int64_t cp = 1) {
  MeshShape m;
  m.tp = tp;
  m.cp = cp;
  m.dp = dp;
  m.kv_heads = c.kv_heads;
  m.experts = c.moe.experts;
  if (m.experts > 0) m.etp = tp;  // tp cuts the experts too, ep none
  return m;
}

}  // namespace orthant::kit
