// Types of numbers, and a dense row-major view of memory owned by a backend.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "orthant/error.hpp"

namespace orthant {

enum class DType : uint8_t { f32, bf16, f16, f64, i32, i64, f8e4m3, f8e5m2 };

inline int64_t size_of(DType t) {
  switch (t) {
    case DType::f32: case DType::i32: return 4;
    case DType::bf16: case DType::f16: return 2;
    case DType::f64: case DType::i64: return 8;
    case DType::f8e4m3: case DType::f8e5m2: return 1;
  }
  return 0;
}
const char* name_of(DType t);

/// Memory of a backend; freed (returned to the pool) with the last tensor that refers to it.
struct Storage;

/// A matrix [rows, cols] in row-major order with leading dim `ld` (elements from one row to the next). Vectors are
/// [1, n] or [n, 1]; token tensors are [tokens, width], tokens in the order (position, sequence of the micro-batch):
/// row = position * B + b, so that a cut along the sequence is a cut of rows.
class Tensor {
 public:
  Tensor() = default;
  Tensor(std::shared_ptr<Storage> storage, void* data, DType dtype, int64_t rows, int64_t cols, int64_t ld)
      : storage_(std::move(storage)), data_(data), dtype_(dtype), rows_(rows), cols_(cols), ld_(ld) {}

  explicit operator bool() const { return data_ != nullptr || rows_ * cols_ > 0; }
  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t ld() const { return ld_; }
  int64_t size() const { return rows_ * cols_; }
  int64_t bytes() const { return size() * size_of(dtype_); }
  bool dense() const { return ld_ == cols_ || rows_ <= 1; }
  void* data() const { return data_; }
  /// Typed pointer; the type's size must match the dtype's.
  template <class T>
  T* as() const {
    ORTHANT_ENSURE(static_cast<int64_t>(sizeof(T)) == size_of(dtype_), "tensor read as a type of another size");
    return static_cast<T*>(data_);
  }
  /// Rows [begin, begin + count).
  Tensor row_range(int64_t begin, int64_t count) const {
    ORTHANT_ENSURE(begin >= 0 && count >= 0 && begin + count <= rows_, "row range outside the tensor");
    return Tensor(storage_, offset(begin * ld_), dtype_, count, cols_, ld_);
  }
  /// Columns [begin, begin + count) of every row (not dense).
  Tensor col_range(int64_t begin, int64_t count) const {
    ORTHANT_ENSURE(begin >= 0 && count >= 0 && begin + count <= cols_, "column range outside the tensor");
    return Tensor(storage_, offset(begin), dtype_, rows_, count, ld_);
  }
  /// The same dense memory seen as another shape.
  Tensor reshaped(int64_t rows, int64_t cols) const {
    ORTHANT_ENSURE(dense() && rows * cols == size(), "reshape changes the number of elements");
    return Tensor(storage_, data_, dtype_, rows, cols, cols);
  }
  /// One row seen as many equal ones (leading dim 0), for reading only.
  Tensor repeated(int64_t rows) const {
    ORTHANT_ENSURE(rows_ == 1, "only one row can be repeated");
    return Tensor(storage_, data_, dtype_, rows, cols_, 0);
  }
  const std::shared_ptr<Storage>& storage() const { return storage_; }

 private:
  /// A tensor without memory (shapes only) stays without.
  void* offset(int64_t elements) const { return data_ ? static_cast<char*>(data_) + elements * size_of(dtype_) : nullptr; }
  std::shared_ptr<Storage> storage_;
  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  int64_t rows_ = 0, cols_ = 0, ld_ = 0;
};

}  // namespace orthant
