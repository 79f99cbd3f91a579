// Address space in which every block has pages of its own, closed to everybody unless opened.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "orthant/memory.hpp"

namespace orthant {

/// A block; open while `users` > 0. Tensors that are views of one storage share it.
struct GuardedStorage : Storage {
  int64_t pages_bytes = 0;
  int users = 0;
};

/// Reserves address space once, without memory behind it. A block given back keeps its addresses closed until the
/// space runs short, so that a pointer kept too long is caught as well. While an arena lives, a touch of a closed
/// block prints which block it was and aborts.
class Arena {
 public:
  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Gives `block` closed pages for `bytes`; false when the system has none left.
  bool take(GuardedStorage& block, int64_t bytes);
  void give(GuardedStorage& block);
  void open(GuardedStorage& block);
  void close(GuardedStorage& block);

  /// The block that holds `address`, live or not: for the message. Null outside the arena's live blocks.
  const GuardedStorage* find(const void* address) const;
  bool contains(const void* address) const;

 private:
  char* base_ = nullptr;
  int64_t bytes_ = 0, used_ = 0;
  std::map<int64_t, std::vector<char*>> free_;         // by bytes of pages
  std::map<const char*, const GuardedStorage*> live_;  // by first address
};

}  // namespace orthant
