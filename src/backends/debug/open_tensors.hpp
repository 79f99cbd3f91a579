// Tensors open for the time of one operation: all that are among its arguments, or inside of them.
#pragma once

#include <type_traits>
#include <vector>

#include "backends/debug/arena.hpp"
#include "orthant/backend.hpp"

namespace orthant {

// tensors_in(x, f): f(tensor) for each tensor in an argument of an operation. There is one for every type of argument, and
// each takes its struct apart into all members, so that neither a new type nor a new member can keep a tensor from view.
template <class F>
void tensors_in(const Tensor& x, const F& f) {
  f(x);
}
template <class X, class F>
  requires(std::is_arithmetic_v<X> || std::is_enum_v<X>)
void tensors_in(const X&, const F&) {}
template <class F>
void tensors_in(const Dropout& d, const F& f) {
  const auto& [rate, key, step, tokens] = d;
  f(tokens);
}
template <class F>
void tensors_in(const AttentionShape& s, const F& f) {
  const auto& [batch, q_length, k_length, q_begin, k_begin, heads, kv_heads, head_dim, v_dim, scale, starts, dropout,
               canonical, first_head, all_heads, sequence] = s;
  f(starts);
  tensors_in(dropout, f);
}
template <class F>
void tensors_in(const Quantised& x, const F& f) {
  const auto& [q, inverse_scale, block_rows, block_cols] = x;
  f(q);
  f(inverse_scale);
}
template <class F>
void tensors_in(const std::vector<Product>& products, const F& f) {
  for (const auto& [a, transpose_a, b, transpose_b, c, accumulate] : products) {
    f(a);
    f(b);
    f(c);
  }
}
template <class F>
void tensors_in(const RopeShape& s, const F&) {
  [[maybe_unused]] const auto& [heads, width, stride, interleaved] = s;
}
template <class F>
void tensors_in(const RouterShape& s, const F&) {
  [[maybe_unused]] const auto& [experts, top_k, sigmoid, groups, top_groups, normalise, scale] = s;
}
template <class F>
void tensors_in(const AdamwStep& s, const F&) {
  [[maybe_unused]] const auto& [lr, beta1, beta2, eps, weight_decay, bias1, bias2, grad_scale] = s;
}
template <class F>
void tensors_in(const SgdStep& s, const F&) {
  [[maybe_unused]] const auto& [lr, momentum, weight_decay, grad_scale] = s;
}

/// Opens the blocks of all tensors in `x`, and closes them at its end. LogicError for a tensor of another backend.
class OpenTensors {
 public:
  template <class... X>
  explicit OpenTensors(Arena& arena, const X&... x) : arena_(arena) {
    // all are looked at before the first is opened: a constructor that throws closes nothing
    const auto note = [this](const Tensor& t) {
      if (!t.storage()) return;
      ORTHANT_ENSURE(arena_.contains(t.storage()->data), "debug backend: the tensor belongs to another backend");
      blocks_.push_back(static_cast<GuardedStorage*>(t.storage().get()));
    };
    (tensors_in(x, note), ...);
    for (GuardedStorage* b : blocks_) arena_.open(*b);
  }
  ~OpenTensors() {
    for (GuardedStorage* b : blocks_) arena_.close(*b);
  }
  OpenTensors(const OpenTensors&) = delete;
  OpenTensors& operator=(const OpenTensors&) = delete;

 private:
  Arena& arena_;
  std::vector<GuardedStorage*> blocks_;
};

}  // namespace orthant
