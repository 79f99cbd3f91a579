// Host memory in blocks that are kept for the next tensor of about the same size.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "orthant/memory.hpp"

namespace orthant {

/// Blocks are 64-byte aligned; blocks of 4 MiB and more ask for huge pages. Not thread-safe: tensors are made and
/// freed by the main thread.
class Pool {
 public:
  explicit Pool(MemoryAccount* account) : account_(account) {}
  ~Pool() { trim(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// A block of at least `bytes` (> 0). nullptr when the system has none left, even after the kept blocks were freed.
  void* take(int64_t bytes);
  /// Gives a block back; `bytes` as it was asked for.
  void give(void* block, int64_t bytes);
  /// Frees the kept blocks.
  void trim();
  /// Bytes in kept blocks.
  int64_t kept() const { return kept_; }

  /// The account of the backend; nullptr once the backend is gone (tensors may end after it).
  MemoryAccount* account() const { return account_; }
  void detach() { account_ = nullptr; }

  /// Bytes of the block that serves a request: steps of an eighth of a power of two, at least 64.
  static int64_t class_of(int64_t bytes);

 private:
  MemoryAccount* account_;
  std::map<int64_t, std::vector<void*>> free_;
  int64_t kept_ = 0, live_ = 0;  // bytes of kept blocks, and of those handed out
};

/// The account as a few lines of text, for the message of a failed allocation and for reports.
std::string account_table(const MemoryAccount& account);

}  // namespace orthant
