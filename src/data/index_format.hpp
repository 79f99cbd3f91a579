// Byte layout of a .idx file (Megatron-LM, core/datasets/indexed_dataset.py), little-endian, unaligned:
//   0 magic (9)   9 version u64 = 1   17 token type u8   18 sequences S u64   26 boundaries D u64
//   34 lengths i32 x S   34 + 4 S byte offsets i64 x S   34 + 12 S document boundaries i64 x D (first 0, last S)
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace orthant::index_format {

static_assert(std::endian::native == std::endian::little, "dataset files are little-endian and read as they are");

inline constexpr char magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr uint64_t version = 1;
inline constexpr int64_t header_bytes = 34;

/// A value at any address.
template <typename T>
T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace orthant::index_format
