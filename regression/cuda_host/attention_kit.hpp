// What the tests of attention share: a case, its shape, and inputs of the backward that are the same on both sides.
#pragma once

#include "cuda_kit.hpp"

namespace cuda_kit {

struct AttentionCase {
  const char* what;
  int64_t batch, q_length, k_length, q_begin, k_begin, heads, kv_heads, dim, v_dim;
  bool documents = false;
};

inline AttentionShape shape(const AttentionCase& c) {
  AttentionShape s;
  s.batch = c.batch;
  s.q_length = c.q_length;
  s.k_length = c.k_length;
  s.q_begin = c.q_begin;
  s.k_begin = c.k_begin;
  s.heads = c.heads;
  s.kv_heads = c.kv_heads;
  s.head_dim = c.dim;
  s.v_dim = c.v_dim;
  s.scale = 1 / std::sqrt(static_cast<double>(c.dim));
  return s;
}

/// The tensor of a twin's cpu side on both sides.
inline Twin settled(Pair& p, const Twin& x, int64_t pad = 3) {
  const auto v = kit::values(p.be(0), x[0]);
  const int64_t cols = x[0].cols();
  return p.make(x[0].dtype(), x[0].rows(), cols, pad,
                [&](int64_t r, int64_t c) { return v[static_cast<size_t>(r * cols + c)]; });
}

}  // namespace cuda_kit
