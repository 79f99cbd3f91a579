// Address space in which every block has pages of its own, closed to everybody unless opened.
#include "backends/debug/arena.hpp"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "orthant/error.hpp"
#include "orthant/tensor.hpp"

namespace orthant {
namespace {

constexpr int max_arenas = 16;
// Read by the signal handler, which has no other way to its data.
std::atomic<const Arena*> arenas[max_arenas];
struct sigaction previous;
std::atomic<bool> installed{false};

void say(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

/// A fault inside an arena is reported and ends the program; any other goes to whoever handled it before.
void on_fault(int signal, siginfo_t* info, void* context) {
  for (const auto& slot : arenas) {
    const Arena* arena = slot.load();
    if (!arena || !arena->contains(info->si_addr)) continue;
    char line[240];
    if (const GuardedStorage* block = arena->find(info->si_addr)) {
      std::snprintf(
          line, sizeof line,
          "orthant: host code touched device tensor memory (byte %lld of a block of %lld bytes, kind %s)\n",
          static_cast<long long>(static_cast<const char*>(info->si_addr) - static_cast<const char*>(block->data)),
          static_cast<long long>(block->bytes), name_of(block->kind));
    } else {
      std::snprintf(line, sizeof line,
                    "orthant: host code touched device tensor memory that was freed (address %p)\n", info->si_addr);
    }
    say(line);
    say("orthant: read or write it between host_begin and host_end, or give the tensor to the operation; call "
        "stack:\n");
    void* frames[32];
    backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
    std::abort();
  }
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(signal);
  sigaction(SIGSEGV, &previous, nullptr);  // returning repeats the fault, now without this handler
}

int64_t page() { return sysconf(_SC_PAGESIZE); }

void protect(const GuardedStorage& block, int rights) {
  if (mprotect(block.data, static_cast<size_t>(block.pages_bytes), rights) != 0)
    throw FaultError(std::string("debug backend: mprotect failed: ") + std::strerror(errno));
}

}  // namespace

Arena::Arena() {
  // address space only; a limit (ulimit -v) may allow less than the first wish
  for (bytes_ = int64_t{1} << 42; bytes_ >= int64_t{1} << 33; bytes_ /= 2) {
    void* p =
        mmap(nullptr, static_cast<size_t>(bytes_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) continue;
    base_ = static_cast<char*>(p);
    break;
  }
  if (!base_) throw FaultError("debug backend: cannot reserve 8 GiB of address space (see ulimit -v)");
  for (auto& slot : arenas) {
    const Arena* none = nullptr;
    if (!slot.compare_exchange_strong(none, this)) continue;
    if (installed.exchange(true)) return;
    void* warm_up[2];
    backtrace(warm_up, 2);  // loads its library now: not in a signal handler
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &previous);
    return;
  }
  throw LogicError("more than 16 debug backends at a time");
}

Arena::~Arena() {
  for (auto& slot : arenas) {
    const Arena* self = this;
    if (slot.compare_exchange_strong(self, nullptr)) break;
  }
  munmap(base_, static_cast<size_t>(bytes_));
}

bool Arena::take(GuardedStorage& block, int64_t bytes) {
  const int64_t size =
      (bytes / page() + 1) * page();  // never full: at least one byte behind the end is closed or unused
  char* data = nullptr;
  if (used_ + size + page() <= bytes_) {
    data = base_ + used_;
    used_ += size + page();  // one page between blocks stays closed for ever
  } else {
    auto it = free_.find(size);
    if (it == free_.end() || it->second.empty()) return false;
    data = it->second.back();
    it->second.pop_back();
  }
  block.data = data;
  block.bytes = bytes;
  block.pages_bytes = size;
  live_[data] = &block;
  return true;
}

void Arena::give(GuardedStorage& block) {
  protect(block, PROT_NONE);
  madvise(block.data, static_cast<size_t>(block.pages_bytes), MADV_DONTNEED);
  live_.erase(static_cast<const char*>(block.data));
  free_[block.pages_bytes].push_back(static_cast<char*>(block.data));
}

void Arena::open(GuardedStorage& block) {
  if (block.users++ == 0) protect(block, PROT_READ | PROT_WRITE);
}

void Arena::close(GuardedStorage& block) {
  if (--block.users == 0) protect(block, PROT_NONE);
}

bool Arena::contains(const void* address) const {
  const char* p = static_cast<const char*>(address);
  return p >= base_ && p < base_ + bytes_;
}

const GuardedStorage* Arena::find(const void* address) const {
  const char* p = static_cast<const char*>(address);
  auto it = live_.upper_bound(p);
  if (it == live_.begin()) return nullptr;
  const GuardedStorage* block = std::prev(it)->second;
  return p < static_cast<const char*>(block->data) + block->pages_bytes ? block : nullptr;
}

}  // namespace orthant
