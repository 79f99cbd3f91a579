// The device memory of the stand-in: one reserved range that host code cannot touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace host_stand_in {

class DeviceMemory {
 public:
  /// The one of this process.
  static DeviceMemory& instance();
  /// A block of at least one byte, null when there is no room. Contents are whatever they were.
  void* take(size_t bytes);
  /// Gives a block back for good; the margin behind it must be whole. Memory must be open.
  void give(void* data);
  /// Fills a fresh block and its margin. Memory must be open.
  void fill(void* data);
  /// No longer in use for the host's calls, although its streams still run.
  void retire(void* data);
  bool holds(const void* data, size_t bytes) const;
  bool contains(const void* address) const;
  size_t in_use() const { return in_use_; }
  void open();
  void close();

 private:
  DeviceMemory();
  struct Block {
    size_t bytes = 0, room = 0;
    bool retired = false;
  };
  char* base_ = nullptr;
  size_t used_ = 0, in_use_ = 0;
  int open_ = 0;
  std::map<const char*, Block> blocks_;
  std::map<size_t, std::vector<char*>> free_;  // by room
};

}  // namespace host_stand_in
