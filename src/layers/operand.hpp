// x or dy of a linear layer, on its way through the products that it takes part in.
//
// In FP8 with one scale a tensor both directions of a matrix have the same FP8 numbers. The first product leaves them here
// and the others take them: x of a layer (and of its neighbours with the same input) in the forward and for dW, dy for dx
// and dW. What is kept for later is then these, a byte a number. Recipes with blocks have other numbers by rows than by
// columns and leave nothing here, nor has any other precision use for it.
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

 private:
  friend class Fp8;
  Tensor x_;
  mutable Quantised q_;
  mutable int64_t entry_ = -1;  ///< of the weight whose product made q_
  mutable bool whole_ = false;  ///< a product could not take q_
};

}  // namespace orthant
