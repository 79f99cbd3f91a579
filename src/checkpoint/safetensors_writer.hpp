// Writer of safetensors files: shapes first, then the data in pieces, in bounded memory, under a temporary name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace orthant {

/// A tensor to be written. dtype: F32, F16, BF16 or F64.
struct TensorSpec {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t elements() const;
  int64_t bytes() const;
};

/// What `--dtype` accepts ("fp32", "bf16", "fp16", "fp64", or the file's own F32, BF16, F16, F64), as the file spells
/// it; UsageError for anything else.
std::string file_dtype(const std::string& text);

/// One file. Entries are laid out and the header is spelled as the reference library does it (wide dtypes first, then
/// by name; compact JSON; padded to 8 bytes), so that a file read and written again is the same to the byte. Values
/// are rounded to nearest, ties to even. Nothing appears under `path` before finish(); an unfinished file is removed
/// by the destructor. DataError if the file cannot be written; UsageError for a dtype that cannot be written;
/// LogicError for a name given twice, data outside a tensor, or a tensor not written exactly once.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::string path, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// The next `count` elements (row-major) of `tensor`. Tensors may be written in any order and by turns; each is
  /// filled from its first element on.
  void write(const std::string& tensor, const float* values, int64_t count);

  /// Syncs the file and gives it its name.
  void finish();

  const std::string& path() const { return path_; }

 private:
  struct Slot {
    TensorSpec spec;
    int64_t offset = 0;   // in the file, bytes
    int64_t written = 0;  // elements
  };
  void put(const void* data, int64_t bytes, int64_t offset);
  [[noreturn]] void fail(const char* what);

  std::string path_, temporary_;
  std::map<std::string, Slot> slots_;
  std::vector<unsigned char> buffer_;
  int fd_ = -1;
};

}  // namespace orthant
