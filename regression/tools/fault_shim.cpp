// Preloaded into a process (LD_PRELOAD), makes chosen system calls on chosen files fail, fall short, take long or
// kill the process, so that tests can play broken disks and file systems without being root.
//
//   ORTHANT_FAULT      rules divided by ';', each of words divided by blanks:
//     op=NAME          write (in any form), fsync, rename, ftruncate, fallocate, unlink, mkdir, stat, flock (also
//                      fcntl locks), or open, which means opening for writing; or appear, which is no call: the rule
//                      holds from the moment when the file named by path= is there, whatever the process does then
//     path=TEXT        only files whose path contains TEXT (of a rename one of the two names), and so for each TEXT
//                      given; for appear, the whole path
//     rank=N           only on rank N of the launcher (0 without one)
//     after=N          from the N-th such call of this process on, default 1
//     times=N          that many calls, default 0: all that follow
//   and what then happens, in this order:
//     delay_ms=N       the call waits first
//     exit=SIGNAL      SIGKILL or SIGTERM: the process sends it to itself
//     exit=N           it ends with that code, without a word to anyone
//     error=NAME       the call does nothing and fails with this errno
//     short            a write of half the bytes (at least one), which says so
//   ORTHANT_FAULT_LOG  a file that gets lines "RANK PID WHAT PATH" for files opened for writing (`create` where the
//                      call may make the file, else `open`), names given (`rename`, the new name), and `exit`
//
// A word it does not know ends the process with 97: a test whose fault never happens must not pass.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Rule {
  std::string op;
  std::vector<std::string> paths;
  long rank = -1, after = 1, times = 0, delay_ms = 0;
  int signal = 0, error = 0, code = -1;
  bool partial = false;
  std::atomic<long> seen{0};
};

struct Verdict {
  int error = 0;
  bool partial = false;
};

[[noreturn]] void refuse(std::string_view word) {
  const std::string text = "fault_shim: cannot do \"" + std::string(word) + "\"\n";
  (void)!syscall(SYS_write, 2, text.data(), text.size());
  _exit(97);
}

long number(std::string_view word, const std::string& value) {
  char* end = nullptr;
  const long n = std::strtol(value.c_str(), &end, 10);
  if (value.empty() || *end != 0 || n < 0) refuse(word);
  return n;
}

long own_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* value = std::getenv(name)) return std::atol(value);
  return 0;
}

std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(by, at), text.size());
    if (end > at) parts.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

void read_word(Rule& rule, const std::string& word) {
  static const std::map<std::string, int> errors = {
      {"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EROFS", EROFS},   {"EACCES", EACCES},
      {"ENOLCK", ENOLCK}, {"ENOSYS", ENOSYS}, {"ENOENT", ENOENT}, {"EINVAL", EINVAL}, {"EOPNOTSUPP", EOPNOTSUPP}};
  static const std::map<std::string, int> signals = {{"SIGKILL", SIGKILL}, {"SIGTERM", SIGTERM}};
  static const char* const ops[] = {"write", "fsync", "rename", "ftruncate", "fallocate", "unlink",
                                    "mkdir", "stat",  "flock",  "open",      "appear"};
  const size_t equals = word.find('=');
  const std::string key = word.substr(0, equals), value = equals == word.npos ? "" : word.substr(equals + 1);
  if (word == "short") {
    rule.partial = true;
  } else if (key == "op" && std::find(std::begin(ops), std::end(ops), value) != std::end(ops)) {
    rule.op = value;
  } else if (key == "path" && !value.empty()) {
    rule.paths.push_back(value);
  } else if (key == "error" && errors.count(value)) {
    rule.error = errors.at(value);
  } else if (key == "exit" && signals.count(value)) {
    rule.signal = signals.at(value);
  } else if (key == "exit") {
    rule.code = static_cast<int>(std::min(number(word, value), 256L));
    if (rule.code > 255) refuse(word);
  } else if (key == "rank") {
    rule.rank = number(word, value);
  } else if (key == "after") {
    rule.after = number(word, value);
  } else if (key == "times") {
    rule.times = number(word, value);
  } else if (key == "delay_ms") {
    rule.delay_ms = number(word, value);
  } else {
    refuse(word);
  }
}

/// Those of this rank. Never destroyed: calls come until the very end of the process.
const std::vector<std::unique_ptr<Rule>>& rules() {
  static const auto* const all = [] {
    auto* list = new std::vector<std::unique_ptr<Rule>>;
    const char* text = std::getenv("ORTHANT_FAULT");
    for (const std::string& words : split(text ? text : "", ';')) {
      auto rule = std::make_unique<Rule>();
      for (const std::string& word : split(words, ' ')) read_word(*rule, word);
      const bool ends = rule->signal || rule->code >= 0, fails = rule->error || rule->partial;
      if (rule->op.empty() || !(rule->delay_ms || ends || fails) || (rule->partial && rule->op != "write"))
        refuse(words);
      if (rule->op == "appear" && (rule->paths.size() != 1 || !ends || fails)) refuse(words);
      if (rule->rank < 0 || rule->rank == own_rank()) list->push_back(std::move(rule));
    }
    return list;
  }();
  return *all;
}

std::string path_of(int fd) {
  char name[32], path[4096];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  const ssize_t n = ::readlink(name, path, sizeof path);
  return std::string(path, n > 0 ? static_cast<size_t>(n) : 0);
}

bool wanted(const char* op) {
  return std::any_of(rules().begin(), rules().end(), [&](const auto& rule) { return rule->op == op; });
}

void wait_ms(long ms) {
  timespec left{ms / 1000, ms % 1000 * 1000000};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

void end_by(const Rule& rule) {
  if (rule.signal) ::kill(::getpid(), rule.signal);
  if (rule.code >= 0) _exit(rule.code);
}

Verdict judge(const char* op, const std::string& path, const std::string& other = "") {
  Verdict verdict;
  for (const auto& rule : rules()) {
    if (rule->op != op) continue;
    const auto in_all = [&](const std::string& name) {
      return std::all_of(rule->paths.begin(), rule->paths.end(),
                         [&](const std::string& part) { return name.find(part) != name.npos; });
    };
    if (!in_all(path) && (other.empty() || !in_all(other))) continue;
    const long n = ++rule->seen;
    if (n < rule->after || (rule->times > 0 && n >= rule->after + rule->times)) continue;
    if (rule->delay_ms > 0) wait_ms(rule->delay_ms);
    end_by(*rule);
    if (rule->error) verdict.error = rule->error;
    verdict.partial |= rule->partial;
  }
  return verdict;
}

Verdict judge(const char* op, int fd) { return wanted(op) ? judge(op, path_of(fd)) : Verdict{}; }

/// One line by one call, so that lines of several processes do not mix.
void record(const char* what, const std::string& path) {
  static const int log = [] {
    const char* name = std::getenv("ORTHANT_FAULT_LOG");
    return name ? static_cast<int>(
                      syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644))
                : -1;
  }();
  if (log < 0) return;
  const std::string line =
      std::to_string(own_rank()) + " " + std::to_string(::getpid()) + " " + what + " " + path + "\n";
  (void)!syscall(SYS_write, log, line.data(), line.size());
}

/// Waits for the files of `appear` beside the process' own threads, which do not know. Signals are not for this
/// thread.
void* look_out(void*) {
  for (;;) {
    for (const auto& rule : rules()) {
      if (rule->op != "appear" || syscall(SYS_access, rule->paths.front().c_str(), F_OK) != 0) continue;
      wait_ms(rule->delay_ms);
      end_by(*rule);
    }
    wait_ms(20);
  }
}

__attribute__((constructor)) void begin_look_out() {
  if (!wanted("appear")) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  if (pthread_create(&thread, nullptr, look_out, nullptr) != 0) refuse("a thread for op=appear");
  pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

__attribute__((destructor)) void record_exit() { record("exit", "-"); }

template <class F>
F* next(const char* name) {
  auto* found = reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
  if (!found) refuse(name);
  return found;
}

int failed(int error) {
  errno = error;
  return -1;
}

size_t half(size_t bytes) { return std::max<size_t>(std::min<size_t>(bytes, 1), bytes / 2); }

/// Calls `write(parts, count)` with all that is to be written, or with its first half.
template <class Write>
ssize_t gathered(int fd, const iovec* parts, int count, Write write) {
  const Verdict v = judge("write", fd);
  if (v.error) return failed(v.error);
  if (!v.partial) return write(parts, count);
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  size_t left = half(bytes);
  std::vector<iovec> first;
  for (int i = 0; i < count && left > 0; ++i) {
    first.push_back({parts[i].iov_base, std::min(left, parts[i].iov_len)});
    left -= first.back().iov_len;
  }
  return write(first.data(), static_cast<int>(first.size()));
}

bool writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

/// For a file opened by name: refused, or recorded and opened.
template <class Open>
auto opened(const char* path, bool for_writing, bool creates, decltype(std::declval<Open>()()) refused, Open open) {
  if (!for_writing) return open();
  if (const Verdict v = judge("open", path); v.error) {
    errno = v.error;
    return refused;
  }
  const auto file = open();
  const int why = errno;
  if (file != refused) record(creates ? "create" : "open", path);
  errno = why;
  return file;
}

mode_t mode_of(int flags, va_list list) {
  return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, mode_t) : 0;
}

template <class Rename>
int renamed(const char* from, const char* to, Rename rename) {
  if (const Verdict v = judge("rename", from, to); v.error) return failed(v.error);
  const int result = rename();
  const int why = errno;
  if (result == 0) record("rename", to);
  errno = why;
  return result;
}

int locked(int fd, int cmd, void* argument, const char* name) {
  if (cmd == F_SETLK || cmd == F_SETLKW || cmd == F_OFD_SETLK || cmd == F_OFD_SETLKW)
    if (const Verdict v = judge("flock", fd); v.error) return failed(v.error);
  return next<int(int, int, ...)>(name)(fd, cmd, argument);
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  const Verdict v = judge("write", fd);
  return v.error ? failed(v.error) : real(fd, data, v.partial ? half(bytes) : bytes);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  const Verdict v = judge("write", fd);
  return v.error ? failed(v.error) : real(fd, data, v.partial ? half(bytes) : bytes, at);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t at) { return pwrite(fd, data, bytes, at); }
ssize_t writev(int fd, const iovec* parts, int count) {
  static auto* const real = next<ssize_t(int, const iovec*, int)>("writev");
  return gathered(fd, parts, count, [&](const iovec* some, int n) { return real(fd, some, n); });
}
ssize_t pwritev(int fd, const iovec* parts, int count, off_t at) {
  static auto* const real = next<ssize_t(int, const iovec*, int, off_t)>("pwritev");
  return gathered(fd, parts, count, [&](const iovec* some, int n) { return real(fd, some, n, at); });
}
ssize_t pwritev64(int fd, const iovec* parts, int count, off64_t at) { return pwritev(fd, parts, count, at); }

int fsync(int fd) {
  static auto* const real = next<int(int)>("fsync");
  const Verdict v = judge("fsync", fd);
  return v.error ? failed(v.error) : real(fd);
}
int fdatasync(int fd) {
  static auto* const real = next<int(int)>("fdatasync");
  const Verdict v = judge("fsync", fd);
  return v.error ? failed(v.error) : real(fd);
}
int ftruncate(int fd, off_t size) noexcept {
  static auto* const real = next<int(int, off_t)>("ftruncate");
  const Verdict v = judge("ftruncate", fd);
  return v.error ? failed(v.error) : real(fd, size);
}
int ftruncate64(int fd, off64_t size) noexcept { return ftruncate(fd, size); }
int fallocate(int fd, int mode, off_t at, off_t size) {
  static auto* const real = next<int(int, int, off_t, off_t)>("fallocate");
  const Verdict v = judge("fallocate", fd);
  return v.error ? failed(v.error) : real(fd, mode, at, size);
}
int fallocate64(int fd, int mode, off64_t at, off64_t size) { return fallocate(fd, mode, at, size); }
int posix_fallocate(int fd, off_t at, off_t size) {
  static auto* const real = next<int(int, off_t, off_t)>("posix_fallocate");
  const Verdict v = judge("fallocate", fd);
  return v.error ? v.error : real(fd, at, size);
}
int posix_fallocate64(int fd, off64_t at, off64_t size) { return posix_fallocate(fd, at, size); }

int rename(const char* from, const char* to) noexcept {
  static auto* const real = next<int(const char*, const char*)>("rename");
  return renamed(from, to, [&] { return real(from, to); });
}
int renameat(int a, const char* from, int b, const char* to) noexcept {
  static auto* const real = next<int(int, const char*, int, const char*)>("renameat");
  return renamed(from, to, [&] { return real(a, from, b, to); });
}
int renameat2(int a, const char* from, int b, const char* to, unsigned flags) noexcept {
  static auto* const real = next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return renamed(from, to, [&] { return real(a, from, b, to, flags); });
}
int unlink(const char* path) noexcept {
  static auto* const real = next<int(const char*)>("unlink");
  const Verdict v = judge("unlink", path);
  return v.error ? failed(v.error) : real(path);
}
int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const real = next<int(const char*, mode_t)>("mkdir");
  const Verdict v = judge("mkdir", path);
  return v.error ? failed(v.error) : real(path, mode);
}
int stat(const char* path, struct stat* out) noexcept {
  static auto* const real = next<int(const char*, struct stat*)>("stat");
  const Verdict v = wanted("stat") ? judge("stat", path) : Verdict{};
  return v.error ? failed(v.error) : real(path, out);
}
int stat64(const char* path, struct stat64* out) noexcept {
  return stat(path, reinterpret_cast<struct stat*>(out));  // the same struct where off_t has 64 bits
}

int flock(int fd, int operation) noexcept {
  static auto* const real = next<int(int, int)>("flock");
  const Verdict v = judge("flock", fd);
  return v.error ? failed(v.error) : real(fd, operation);
}
int fcntl(int fd, int cmd, ...) {
  va_list list;
  va_start(list, cmd);
  void* const argument = va_arg(list, void*);
  va_end(list);
  return locked(fd, cmd, argument, "fcntl");
}
int fcntl64(int fd, int cmd, ...) {
  va_list list;
  va_start(list, cmd);
  void* const argument = va_arg(list, void*);
  va_end(list);
  return locked(fd, cmd, argument, "fcntl64");
}

int open(const char* path, int flags, ...) {
  static auto* const real = next<int(const char*, int, ...)>("open");
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return opened(path, writes(flags), flags & O_CREAT, -1, [&] { return real(path, flags, mode); });
}
int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open(path, flags | O_LARGEFILE, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  static auto* const real = next<int(int, const char*, int, ...)>("openat");
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return opened(path, writes(flags), flags & O_CREAT, -1, [&] { return real(folder, path, flags, mode); });
}
int openat64(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return openat(folder, path, flags | O_LARGEFILE, mode);
}
// Streams open their files by fopen, which calls open inside of libc, where nothing can step in between.
FILE* fopen(const char* path, const char* how) {
  static auto* const real = next<FILE*(const char*, const char*)>("fopen");
  FILE* const none = nullptr;
  return opened(path, std::strpbrk(how, "wa+") != nullptr, *how != 'r', none, [&] { return real(path, how); });
}
FILE* fopen64(const char* path, const char* how) { return fopen(path, how); }

}  // extern "C"
