// Counts what a rank allocates, by kind, so that plans and limits are checked against the allocator and not by hand.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

namespace orthant {

enum class MemoryKind : int { weights, master, gradients, optimizer, activations, workspace, communication };
constexpr int memory_kinds = 7;
const char* name_of(MemoryKind kind);

/// Bytes in use and the highest they were, by kind and in all.
class MemoryAccount {
 public:
  void add(MemoryKind kind, int64_t bytes) {
    auto k = static_cast<size_t>(kind);
    now_[k] += bytes;
    total_ += bytes;
    if (now_[k] > peak_[k]) peak_[k] = now_[k];
    if (total_ > total_peak_) {
      total_peak_ = total_;
      at_peak_ = now_;
    }
  }
  void remove(MemoryKind kind, int64_t bytes) {
    now_[static_cast<size_t>(kind)] -= bytes;
    total_ -= bytes;
  }
  int64_t now(MemoryKind kind) const { return now_[static_cast<size_t>(kind)]; }
  int64_t peak(MemoryKind kind) const { return peak_[static_cast<size_t>(kind)]; }
  int64_t total() const { return total_; }
  int64_t total_peak() const { return total_peak_; }
  /// What each kind held when the total was at its peak.
  int64_t at_peak(MemoryKind kind) const { return at_peak_[static_cast<size_t>(kind)]; }
  /// Forget the peaks seen so far (not what is in use).
  void reset_peak() {
    peak_ = now_;
    total_peak_ = total_;
    at_peak_ = now_;
  }

 private:
  std::array<int64_t, memory_kinds> now_{}, peak_{}, at_peak_{};
  int64_t total_ = 0, total_peak_ = 0;
};

/// A block of memory. The deleter gives it back to the pool of its backend and to the account.
struct Storage {
  void* data = nullptr;
  int64_t bytes = 0;
  MemoryKind kind = MemoryKind::workspace;
};

}  // namespace orthant
