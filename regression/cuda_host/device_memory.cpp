// See device_memory.hpp.
#include "device_memory.hpp"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "cuda_runtime.h"

namespace host_stand_in {
namespace {

constexpr size_t range = size_t{1} << 36;  // address space, no memory
constexpr size_t page = size_t{1} << 21;  // pages are opened and closed all the time: few large ones are quicker
constexpr size_t margin = 256;
constexpr unsigned char margin_byte = 0xa5, freed_byte = 0xdd, fresh_byte = 0xff;
struct sigaction previous;
const DeviceMemory* watched = nullptr;

size_t rounded(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

void on_fault(int signal, siginfo_t* info, void* context) {
  if (watched && watched->contains(info->si_addr)) {
    char line[120];
    const int n = std::snprintf(line, sizeof line, "cuda stand-in: the host touched device memory at %p; call stack:\n", info->si_addr);
    if (write(STDERR_FILENO, line, static_cast<size_t>(n)) < 0) std::abort();
    void* frames[32];
    backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
    std::abort();
  }
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(signal);
  sigaction(SIGSEGV, &previous, nullptr);  // returning repeats the fault, now without this handler
}

}  // namespace

DeviceMemory& DeviceMemory::instance() {
  static auto* memory = new DeviceMemory();  // never destroyed: tensors may end late
  return *memory;
}

DeviceMemory::DeviceMemory() {
  void* p = mmap(nullptr, range + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) refuse("cannot reserve 64 GiB of address space");
  base_ = reinterpret_cast<char*>(rounded(reinterpret_cast<size_t>(p), page));
  madvise(base_, range, MADV_HUGEPAGE);  // where the system has none it is only slower
  void* warm_up[2];
  backtrace(warm_up, 2);  // loads its library now: not in a signal handler
  watched = this;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &previous);
}

void DeviceMemory::open() {
  if (open_++ == 0 && used_ > 0 && mprotect(base_, rounded(used_, page), PROT_READ | PROT_WRITE) != 0) refuse("mprotect failed");
}

void DeviceMemory::close() {
  if (--open_ == 0 && used_ > 0 && mprotect(base_, rounded(used_, page), PROT_NONE) != 0) refuse("mprotect failed");
}

void* DeviceMemory::take(size_t bytes) {
  const size_t room = rounded(bytes + margin, 256);
  char* data = nullptr;
  auto it = free_.find(room);
  if (it != free_.end() && !it->second.empty()) {
    data = it->second.back();
    it->second.pop_back();
  } else {
    if (room > range - used_) return nullptr;
    data = base_ + used_;
    used_ += room;
    if (open_ > 0 && mprotect(base_, rounded(used_, page), PROT_READ | PROT_WRITE) != 0) refuse("mprotect failed");
  }
  blocks_[data] = {bytes, room, false};
  in_use_ += bytes;
  return data;
}

void DeviceMemory::fill(void* data) {
  const Block& b = blocks_.at(static_cast<char*>(data));
  std::memset(data, fresh_byte, b.bytes);
  std::memset(static_cast<char*>(data) + b.bytes, margin_byte, b.room - b.bytes);
}

void DeviceMemory::retire(void* data) {
  auto it = blocks_.find(static_cast<char*>(data));
  if (it == blocks_.end() || it->second.retired) refuse("device memory is freed that is not in use");
  it->second.retired = true;
  in_use_ -= it->second.bytes;
}

void DeviceMemory::give(void* data) {
  auto it = blocks_.find(static_cast<char*>(data));
  const Block b = it->second;
  const auto* bytes = static_cast<unsigned char*>(data);
  for (size_t i = b.bytes; i < b.room; ++i)
    if (bytes[i] != margin_byte)
      refuse("a kernel wrote behind the end of a block of " + std::to_string(b.bytes) + " bytes, at byte " + std::to_string(i));
  std::memset(data, freed_byte, b.bytes);
  blocks_.erase(it);
  free_[b.room].push_back(static_cast<char*>(data));
}

bool DeviceMemory::contains(const void* address) const {
  const char* p = static_cast<const char*>(address);
  return p >= base_ && p < base_ + range;
}

bool DeviceMemory::holds(const void* data, size_t bytes) const {
  const char* p = static_cast<const char*>(data);
  auto it = blocks_.upper_bound(p);
  if (it == blocks_.begin()) return false;
  --it;
  return !it->second.retired && p + bytes <= it->first + it->second.bytes;
}

}  // namespace host_stand_in
