// See safetensors.hpp: the map, the checks of the file as a whole, and reading regions as float or double.
#include "checkpoint/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "checkpoint/float_formats.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "orthant/error.hpp"

namespace orthant {

// The format is little-endian and so is every machine this program is built for; another byte order must not compile
// into a program that reads 1.0 as 4.6e-41.
static_assert(std::endian::native == std::endian::little, "safetensors files are read without byte swaps");

namespace {

constexpr uint64_t header_limit = 100'000'000;

float load_f32(const unsigned char* p) {
  float x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
double load_f64(const unsigned char* p) {
  double x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
uint16_t load_u16(const unsigned char* p) {
  uint16_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// Copies the region element by element. A transposed region is walked in tiles, so that the strided side stays in
// cache for matrices of any width.
template <class Out, class Load>
void copy_region(const unsigned char* base, int64_t item, int64_t file_cols, int64_t row, int64_t rows, int64_t col,
                 int64_t cols, bool transpose, Out* out, Load load) {
  if (!transpose) {
    for (int64_t i = 0; i < rows; ++i) {
      const unsigned char* from = base + ((row + i) * file_cols + col) * item;
      for (int64_t j = 0; j < cols; ++j) out[i * cols + j] = static_cast<Out>(load(from + j * item));
    }
    return;
  }
  constexpr int64_t tile = 32;
  for (int64_t i0 = 0; i0 < rows; i0 += tile) {
    for (int64_t j0 = 0; j0 < cols; j0 += tile) {
      for (int64_t j = j0; j < std::min(cols, j0 + tile); ++j) {
        const unsigned char* from = base + ((col + j) * file_cols + row) * item;
        for (int64_t i = i0; i < std::min(rows, i0 + tile); ++i) {
          out[i * cols + j] = static_cast<Out>(load(from + i * item));
        }
      }
    }
  }
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string TensorEntry::shape_text() const { return orthant::shape_text(shape); }

int64_t TensorEntry::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) {
    if (d == 0) return 0;
    n *= d;
  }
  return n;
}

bool is_weight_dtype(const std::string& dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16" || dtype == "F64";
}

struct SafetensorsFile::Map {
  void* address = nullptr;
  size_t length = 0;
  ~Map() {
    if (address) ::munmap(address, length);
  }
};

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), map_(std::make_unique<Map>()) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw DataError(path + ": cannot open: " + std::strerror(errno));
  struct stat info {};
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const uint64_t size = regular ? static_cast<uint64_t>(info.st_size) : 0;
  void* address = regular && size >= 8 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  const int error = errno;
  ::close(fd);
  if (!regular) throw DataError(path + ": not a regular file");
  if (size < 8) {
    throw DataError(path + ": " + std::to_string(size) +
                    " bytes; a safetensors file has at least the 8 bytes of its "
                    "header length (was the download cut off?)");
  }
  if (address == MAP_FAILED) throw DataError(path + ": cannot map the file: " + std::strerror(error));
  map_->address = address;
  map_->length = size;

  const auto* begin = static_cast<const unsigned char*>(address);
  uint64_t header = 0;
  std::memcpy(&header, begin, sizeof header);
  // compared without adding: a length near 2^64 must not wrap
  if (header < 2 || header > size - 8) {
    throw DataError(path + ": header length " + std::to_string(header) + " cannot be true; between 2 and " +
                    std::to_string(size - 8) + " (the file's size without the first 8 bytes) is right");
  }
  if (header > header_limit) {
    throw DataError(path + ": header of " + std::to_string(header) + " bytes; at most " +
                    std::to_string(header_limit) + " are allowed");
  }
  SafetensorsHeader parsed = parse_safetensors_header(reinterpret_cast<const char*>(begin) + 8, header, path);
  entries_ = std::move(parsed.entries);
  metadata_ = std::move(parsed.metadata);
  data_ = begin + 8 + header;
  check_layout(static_cast<int64_t>(size - 8 - header));
  by_name_.reserve(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) by_name_.emplace(entries_[i].name, i);
}

// The ranges must tile the data exactly: in any order in the header, without overlap, hole or rest.
void SafetensorsFile::check_layout(int64_t data_bytes) {
  std::sort(entries_.begin(), entries_.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  auto range = [](const TensorEntry& e) {
    return "\"" + e.name + "\" [" + std::to_string(e.begin) + ", " + std::to_string(e.end) + "]";
  };
  int64_t at = 0;
  const TensorEntry* last = nullptr;  // the one that ends at `at`
  for (const TensorEntry& e : entries_) {
    if (e.end > data_bytes) {
      throw DataError(path_ + ": tensor " + range(e) + " ends beyond the file, which holds " +
                      std::to_string(data_bytes) + " bytes of data (was the download cut off?)");
    }
    if (e.begin < at) throw DataError(path_ + ": tensor " + range(e) + " overlaps tensor " + range(*last));
    if (e.begin > at) {
      throw DataError(path_ + ": bytes " + std::to_string(at) + " to " + std::to_string(e.begin) + " before tensor " +
                      range(e) + " belong to no tensor; it would be right at " + std::to_string(at));
    }
    at = e.end;
    last = &e;
  }
  if (at != data_bytes) {
    std::string name;
    if (last) name.append(" ").append(range(*last));
    throw DataError(path_ + ": " + std::to_string(data_bytes - at) + " bytes after the last tensor" + name + " belong to no tensor");
  }
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &entries_[at->second];
}

const unsigned char* SafetensorsFile::bytes(const TensorEntry& entry) const { return data_ + entry.begin; }

template <class Out>
void SafetensorsFile::read_as(const TensorEntry& e, int64_t row, int64_t rows, int64_t col, int64_t cols,
                              bool transpose, Out* out) const {
  if (e.shape.size() > 2) {
    throw DataError(path_ + ": tensor \"" + e.name + "\" has shape " + e.shape_text() +
                    "; weights have at most two dims");
  }
  if (e.shape.size() < 2) transpose = false;  // a vector is the same either way
  const int64_t view_rows = transpose ? e.cols() : e.rows(), view_cols = transpose ? e.rows() : e.cols();
  ORTHANT_ENSURE(row >= 0 && rows >= 0 && rows <= view_rows && row <= view_rows - rows && col >= 0 && cols >= 0 &&
                     cols <= view_cols && col <= view_cols - cols,
                 "region outside tensor " + e.name + " " + e.shape_text() + " of " + path_);
  const unsigned char* base = bytes(e);
  auto copy = [&](int64_t item, auto load) {
    copy_region(base, item, e.cols(), row, rows, col, cols, transpose, out, load);
  };
  if (e.dtype == "F32")
    copy(4, load_f32);
  else if (e.dtype == "BF16")
    copy(2, [](const unsigned char* p) { return float_from_bf16(load_u16(p)); });
  else if (e.dtype == "F16")
    copy(2, [](const unsigned char* p) { return float_from_f16(load_u16(p)); });
  else if (e.dtype == "F64")
    copy(8, load_f64);
  else {
    throw DataError(path_ + ": tensor \"" + e.name + "\" has dtype " + e.dtype +
                    ", which cannot be read as weights; F32, F16, BF16 and F64 can");
  }
}

void SafetensorsFile::read_region(const TensorEntry& entry, int64_t row, int64_t rows, int64_t col, int64_t cols,
                                  bool transpose, float* out) const {
  read_as(entry, row, rows, col, cols, transpose, out);
}
void SafetensorsFile::read_region(const TensorEntry& entry, int64_t row, int64_t rows, int64_t col, int64_t cols,
                                  bool transpose, double* out) const {
  read_as(entry, row, rows, col, cols, transpose, out);
}

}  // namespace orthant
