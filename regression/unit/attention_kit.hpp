// Attention for tests: inputs, one run of the operation, and its definition in plain double loops, with documents and
// dropout.
#pragma once

#include <cmath>
#include <vector>

#include "backend_kit.hpp"
#include "orthant/philox.hpp"

namespace orthant::attention_kit {

using Numbers = std::vector<double>;

struct Tensors {
  Tensor q, k, v, o, lse, d_o, dq, dk, dv;
};

/// Inputs are columns of wider tensors when `pad` is set, as the fused q|k|v product gives them.
inline Tensors inputs(Backend& be, const AttentionShape& s, DType t, int64_t pad, bool apart = false) {
  const DType a = t == DType::f64 ? t : DType::f32;
  const int64_t qr = s.q_length * s.batch, kr = s.k_length * s.batch, qc = s.heads * s.head_dim,
                kc = s.kv_heads * s.head_dim;
  const int64_t oc = s.heads * s.value_dim(), vc = s.kv_heads * s.value_dim();
  const int64_t gk = apart ? qc : kc, gv = apart ? oc : vc;
  Tensors x;
  x.q = kit::random(be, t, qr, qc, 1, qc + pad);
  x.k = kit::random(be, t, kr, kc, 2, kc + pad);
  x.v = kit::random(be, t, kr, vc, 3, vc + pad);
  x.d_o = kit::random(be, t, qr, oc, 4, oc + pad);
  x.o = kit::random(be, t, qr, oc, 5, oc + pad);
  x.lse = kit::random(be, a, qr, s.heads, 6, s.heads + pad);
  x.dq = kit::random(be, t, qr, qc, 7, qc + pad);
  x.dk = kit::random(be, t, kr, gk, 8, gk + pad);
  x.dv = kit::random(be, t, kr, gv, 9, gv + pad);
  return x;
}

inline void run(Backend& be, const AttentionShape& s, const Tensors& x) {
  be.attention_forward(s, x.q, x.k, x.v, x.o, x.lse);
  be.attention_backward(s, x.d_o, x.q, x.k, x.v, x.o, x.lse, x.dq, x.dk, x.dv);
}

struct Expected {
  Numbers o, lse, dq, dk, dv;
};

/// The whole numbers of an index tensor.
template <class T>
std::vector<int64_t> integers(Backend& be, const Tensor& x) {
  if (!x) return {};
  const Host<T> h(be, x);
  return {h.data(), h.data() + x.size()};
}

/// starts[row] = f(place of the row's query, sequence).
inline void set_documents(Backend& be, AttentionShape& s, const std::function<int64_t(int64_t, int64_t)>& f) {
  s.starts = be.alloc(DType::i32, s.q_length * s.batch, 1, MemoryKind::workspace);
  Host<int32_t> h(be, s.starts);
  for (int64_t i = 0; i < s.q_length; ++i)
    for (int64_t b = 0; b < s.batch; ++b) h[i * s.batch + b] = static_cast<int32_t>(f(s.q_begin + i, b));
}

/// Dropout of queries that stand in sequences 5, 6, ... of the stream.
inline void set_dropout(Backend& be, AttentionShape& s, double rate, int64_t sequence, int64_t all_heads,
                        int64_t first_head) {
  s.sequence = sequence;
  s.all_heads = all_heads;
  s.first_head = first_head;
  s.dropout = {rate, 0x0123456789abcdefu, 3, be.alloc(DType::i64, s.q_length * s.batch, 1, MemoryKind::workspace)};
  Host<int64_t> h(be, s.dropout.tokens);
  for (int64_t i = 0; i < s.q_length; ++i)
    for (int64_t b = 0; b < s.batch; ++b) h[i * s.batch + b] = (5 + b) * sequence + s.q_begin + i;
}

/// What element n of a dropout is multiplied by, straight from the definition.
inline double drop_factor(const Dropout& d, int64_t n) {
  if (d.rate == 0) return 1;
  const auto u = static_cast<uint64_t>(n);
  const Philox4 w = philox(static_cast<uint32_t>(u / 4), static_cast<uint32_t>(u / 4 >> 32),
                           static_cast<uint32_t>(d.step), 0, static_cast<uint32_t>(d.key),
                           static_cast<uint32_t>(d.key >> 32));
  const uint32_t words[] = {w.x0, w.x1, w.x2, w.x3};
  return words[u % 4] >= d.rate * 0x1p32 ? 1 / (1 - d.rate) : 0;
}

/// The definition, with whole rows of scores.
inline Expected plain(Backend& be, const AttentionShape& s, const Tensors& x) {
  const Numbers q = kit::values(be, x.q), k = kit::values(be, x.k), v = kit::values(be, x.v),
                d_o = kit::values(be, x.d_o);
  const auto starts = integers<int32_t>(be, s.starts), tokens = integers<int64_t>(be, s.dropout.tokens);
  const int64_t qc = s.heads * s.head_dim, kc = s.kv_heads * s.head_dim, wide = s.value_dim();
  Expected e{Numbers(d_o.size()), Numbers(static_cast<size_t>(s.q_length * s.batch * s.heads)), Numbers(q.size()),
             Numbers(k.size()), Numbers(v.size())};
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t i = 0; i < s.q_length; ++i) {
        const size_t qi = static_cast<size_t>((i * s.batch + b) * qc + h * s.head_dim);
        auto ki = [&](int64_t j) {
          return static_cast<size_t>((j * s.batch + b) * kc + h / (s.heads / s.kv_heads) * s.head_dim);
        };
        const size_t oi = static_cast<size_t>((i * s.batch + b) * s.heads * wide + h * wide);
        auto vi = [&](int64_t j) {
          return static_cast<size_t>(((j * s.batch + b) * s.kv_heads + h / (s.heads / s.kv_heads)) * wide);
        };
        const auto row = static_cast<size_t>(i * s.batch + b);
        const int64_t start = starts.empty() ? 0 : starts[row];
        std::vector<int64_t> seen;
        Numbers p;
        double top = -INFINITY, sum = 0, delta = 0;
        for (int64_t j = 0; j < s.k_length && s.k_begin + j <= s.q_begin + i; ++j) {
          if (s.k_begin + j < start) continue;
          seen.push_back(j);
          double score = 0;
          for (int64_t d = 0; d < s.head_dim; ++d)
            score += q[qi + static_cast<size_t>(d)] * k[ki(j) + static_cast<size_t>(d)];
          p.push_back(score * s.scale);
          top = std::max(top, p.back());
        }
        for (double& score : p) sum += score = std::exp(score - top);
        e.lse[static_cast<size_t>((i * s.batch + b) * s.heads + h)] = p.empty() ? -INFINITY : top + std::log(sum);
        Numbers dp(p.size()), m(p.size());
        for (size_t j = 0; j < p.size(); ++j) {
          p[j] /= sum;
          m[j] = 1;
          if (s.dropout.rate > 0)
            m[j] = drop_factor(s.dropout, (tokens[row] * s.all_heads + s.first_head + h) * s.sequence + s.k_begin +
                                              seen[j]);
          for (size_t d = 0; d < static_cast<size_t>(wide); ++d) {
            e.o[oi + d] += m[j] * p[j] * v[vi(seen[j]) + d];
            dp[j] += m[j] * d_o[oi + d] * v[vi(seen[j]) + d];
          }
          delta += p[j] * dp[j];
        }
        for (size_t j = 0; j < p.size(); ++j) {
          const double ds = p[j] * (dp[j] - delta) * s.scale;
          for (size_t d = 0; d < static_cast<size_t>(s.head_dim); ++d) {
            e.dq[qi + d] += ds * k[ki(seen[j]) + d];
            e.dk[ki(seen[j]) + d] += ds * q[qi + d];
          }
          for (size_t d = 0; d < static_cast<size_t>(wide); ++d)
            e.dv[vi(seen[j]) + d] += m[j] * p[j] * d_o[oi + d];
        }
      }
  return e;
}

inline AttentionShape shape(int64_t batch, int64_t ql, int64_t kl, int64_t qb, int64_t kb, int64_t heads, int64_t kv,
                            int64_t dim) {
  AttentionShape s;
  s.batch = batch;
  s.q_length = ql;
  s.k_length = kl;
  s.q_begin = qb;
  s.k_begin = kb;
  s.heads = heads;
  s.kv_heads = kv;
  s.head_dim = dim;
  s.scale = 1.0 / std::sqrt(static_cast<double>(dim));
  return s;
}

/// Every `every`-th element of dq, dk and dv, as the backward pass of `x` (f64) gives them, is a slope of sum(o d_o).
inline void expect_finite_differences(Backend& be, const AttentionShape& s, const Tensors& x, int64_t every) {
  using kit::values;
  run(be, s, x);
  const Numbers weight = values(be, x.d_o);
  auto objective = [&] {
    be.attention_forward(s, x.q, x.k, x.v, x.o, x.lse);
    const Numbers o = values(be, x.o);
    double sum = 0;
    for (size_t i = 0; i < o.size(); ++i) sum += o[i] * weight[i];
    return sum;
  };
  const std::pair<const Tensor*, Numbers> pairs[] = {
      {&x.q, values(be, x.dq)}, {&x.k, values(be, x.dk)}, {&x.v, values(be, x.dv)}};
  for (const auto& [input, gradient] : pairs)
    for (int64_t i = 0; i < input->size(); i += every) {
      double at[2];
      for (int side = 0; side < 2; ++side) {
        const double step = side ? 1e-5 : -1e-5;
        const auto move = [&, to = input](double by) { Host<double>(be, *to)[i] += by; };
        move(step);
        at[side] = objective();
        move(-step);
      }
      EXPECT_NEAR((at[1] - at[0]) / 2e-5, gradient[static_cast<size_t>(i)], 1e-8) << "element " << i;
    }
}

}  // namespace orthant::attention_kit
