// Host memory in blocks that are kept for the next tensor of about the same size.
#include "backends/pool.hpp"

#include <sys/mman.h>

#include <bit>
#include <cstdio>
#include <cstdlib>

namespace orthant {
namespace {
constexpr int64_t huge_page = int64_t{2} << 20;
constexpr int64_t huge_from = 2 * huge_page;
}  // namespace

int64_t Pool::class_of(int64_t bytes) {
  if (bytes <= 512) return (bytes + 63) / 64 * 64 + (bytes == 0 ? 64 : 0);
  const int64_t step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes - 1))) / 8;
  return (bytes + step - 1) / step * step;
}

void* Pool::take(int64_t bytes) {
  const int64_t size = class_of(bytes);
  auto it = free_.find(size);
  if (it != free_.end() && !it->second.empty()) {
    void* block = it->second.back();
    it->second.pop_back();
    kept_ -= size;
    live_ += size;
    return block;
  }
  // A steady loop finds its blocks above. Coming here with more kept than in use means that the shapes changed.
  if (kept_ > live_ + huge_from) trim();
  const size_t alignment = size >= huge_from ? huge_page : 64;
  void* block = nullptr;
  if (posix_memalign(&block, alignment, static_cast<size_t>(size)) != 0) {
    trim();
    if (posix_memalign(&block, alignment, static_cast<size_t>(size)) != 0) return nullptr;
  }
  if (size >= huge_from) madvise(block, static_cast<size_t>(size), MADV_HUGEPAGE);  // a hint: failure costs time only
  live_ += size;
  return block;
}

void Pool::give(void* block, int64_t bytes) {
  const int64_t size = class_of(bytes);
  live_ -= size;
  kept_ += size;
  free_[size].push_back(block);
}

void Pool::trim() {
  for (auto& [size, blocks] : free_)
    for (void* block : blocks) std::free(block);
  free_.clear();
  kept_ = 0;
}

std::string account_table(const MemoryAccount& account) {
  char line[160];
  std::string table = "  kind                 now MiB      peak MiB\n";
  for (int k = 0; k < memory_kinds; ++k) {
    const auto kind = static_cast<MemoryKind>(k);
    std::snprintf(line, sizeof line, "  %-15s %12.1f  %12.1f\n", name_of(kind),
                  static_cast<double>(account.now(kind)) / 1048576.0,
                  static_cast<double>(account.peak(kind)) / 1048576.0);
    table += line;
  }
  std::snprintf(line, sizeof line, "  %-15s %12.1f  %12.1f\n", "total",
                static_cast<double>(account.total()) / 1048576.0,
                static_cast<double>(account.total_peak()) / 1048576.0);
  return table + line;
}

}  // namespace orthant
