// x or dy of a linear layer, on its way through the products that it takes part in.
//
// In FP8 with one scale a tensor both directions of a matrix have the same FP8 numbers. The first product leaves them here
// and the others take them: x of a layer (and of its neighbours with the same input) in the forward and for dW, dy for dx
// and dW. What is kept for later is then these, a byte a number. Recipes with blocks have other numbers by rows than by
// columns and leave nothing here, nor has any other precision use for it.
//
// Where ranks hold parts of the tokens (sequence parallelism), FP8 numbers that serve all products of an operand travel in its
// stead: each rank makes those of its own rows, and half the bytes of bf16 are gathered (Fp8::can_travel).
#pragma once

#include <cstdint>
#include <utility>

#include "orthant/backend.hpp"

namespace orthant {

class Operand {
 public:
  Operand() = default;
  Operand(Tensor x) : x_(std::move(x)) {}

  explicit operator bool() const { return x_ || q_.q; }
  int64_t rows() const { return x_ ? x_.rows() : q_.q.rows(); }
  int64_t cols() const { return x_ ? x_.cols() : q_.q.cols(); }
  /// As it was given.
  const Tensor& full() const {
    ORTHANT_ENSURE(x_ || !q_.q, "an operand of which only FP8 numbers were kept");
    return x_;
  }
  /// What products of the same layers need later: the FP8 numbers alone, where they served all so far.
  Operand kept() const {
    Operand out = *this;
    if (q_.q && !whole_) out.x_ = Tensor();
    return out;
  }
  /// What travels to other ranks or is copied: the FP8 numbers, or the operand as it was given.
  const Tensor& moved(bool fp8) const {
    ORTHANT_ENSURE(!fp8 || q_.q, "FP8 numbers travel before they were made");
    return fp8 ? q_.q : full();
  }
  /// The operand of which other rows are known, in the form that was moved.
  Operand with(Tensor rows, bool fp8) const {
    Operand out;
    out.x_ = fp8 ? Tensor() : rows;
    if (!fp8) return out;
    out.q_ = q_;
    out.q_.q = std::move(rows);
    out.entry_ = entry_;
    return out;
  }

 private:
  friend class Fp8;
  Tensor x_;
  mutable Quantised q_;
  mutable int64_t entry_ = -1;  ///< of the weight whose product made q_
  mutable bool whole_ = false;  ///< a product could not take q_
};

}  // namespace orthant
