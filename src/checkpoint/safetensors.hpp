// Reader of the safetensors format: u64 header length (little-endian), a JSON header naming dtype, shape and byte
// range of every tensor, then the bytes. The file is mapped, so a rank touches only the pages it reads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace orthant {

/// One tensor of a file. Matrices are row-major; a vector counts as [n, 1], a scalar as [1, 1].
struct TensorEntry {
  std::string name;
  std::string dtype;           ///< as the file spells it: F32, BF16, ...
  std::vector<int64_t> shape;  ///< as in the file
  int64_t begin = 0;           ///< first byte, counted from the end of the header
  int64_t end = 0;             ///< one past the last byte

  int64_t elements() const;
  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  int64_t cols() const { return shape.size() > 1 ? shape[1] : 1; }
  std::string shape_text() const;  ///< "[257, 64]"
};

std::string shape_text(const std::vector<int64_t>& shape);

/// Bits of one element of a safetensors dtype; 0 if the format has no such dtype.
int bits_of_file_dtype(const std::string& dtype);

/// True for the dtypes that weights may have: F32, F16, BF16, F64.
bool is_weight_dtype(const std::string& dtype);

/// A safetensors file, open for reading. Everything about the header is checked in the constructor, before any memory
/// is taken for data. Throws DataError naming file, tensor, value and what would be right.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::string& path() const { return path_; }
  /// All tensors, in the order of their bytes.
  const std::vector<TensorEntry>& entries() const { return entries_; }
  /// nullptr if the file has no such tensor.
  const TensorEntry* find(const std::string& name) const;
  /// The free strings of `__metadata__`.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// The bytes of a tensor of this file as they lie in the map (alignment is not promised).
  const unsigned char* bytes(const TensorEntry& entry) const;

  /// Rows [row, row + rows) and columns [col, col + cols) of the tensor, or of its transpose when `transpose` is set
  /// (then the four numbers count in the transposed view), dense and row-major into `out`. F16 and BF16 widen
  /// exactly; F64 rounds once in the float form. DataError for dtypes that are no weights and tensors of more than
  /// two dims; LogicError for a region outside the tensor.
  void read_region(const TensorEntry& entry, int64_t row, int64_t rows, int64_t col, int64_t cols, bool transpose,
                   float* out) const;
  void read_region(const TensorEntry& entry, int64_t row, int64_t rows, int64_t col, int64_t cols, bool transpose,
                   double* out) const;

 private:
  struct Map;
  template <class Out>
  void read_as(const TensorEntry& entry, int64_t row, int64_t rows, int64_t col, int64_t cols, bool transpose,
               Out* out) const;
  void check_layout(int64_t data_bytes);

  std::string path_;
  std::unique_ptr<Map> map_;
  const unsigned char* data_ = nullptr;
  std::vector<TensorEntry> entries_;
  std::unordered_map<std::string, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace orthant
