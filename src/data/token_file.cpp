// The two halves of a dataset while it is written.
#include "data/token_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>

#include "data/index_format.hpp"
#include "orthant/error.hpp"

namespace orthant {

namespace {

constexpr size_t buffer_bytes = size_t{4} << 20;

[[noreturn]] void failed(const std::string& path, const char* what) {
  throw DataError(path + ": " + what + " failed: " + std::strerror(errno));
}

int create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0)
    throw DataError(path + ": cannot be created: " + std::strerror(errno) +
                    "; the folder of --output must exist and be writable");
  return fd;
}

template <typename T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
void narrow(std::string& to, const int32_t* tokens, int64_t n, const std::string& path, TokenType type) {
  for (int64_t k = 0; k < n; ++k) {
    const int64_t token = tokens[k];
    if (token < static_cast<int64_t>(std::numeric_limits<T>::min()) ||
        token > static_cast<int64_t>(std::numeric_limits<T>::max()))
      throw DataError(path + ": token " + std::to_string(token) + " does not fit the file's type " +
                      token_type_name(type));
    put(to, static_cast<T>(token));
  }
}

}  // namespace

std::string writing_name(const std::string& prefix, const std::string& end) { return prefix + end + ".writing"; }

void write_fully(int fd, const std::string& path, const char* data, int64_t n, int64_t at) {
  while (n > 0) {
    // pieces below 2 GiB: Linux cuts longer ones off anyway
    const auto piece = static_cast<size_t>(std::min<int64_t>(n, int64_t{1} << 30));
    const ssize_t done = ::pwrite(fd, data, piece, at);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) failed(path, ("writing at byte " + std::to_string(at)).c_str());
    data += done;
    at += done;
    n -= done;
  }
}

void sync_and_close(int fd, const std::string& path) {
  const bool synced = ::fsync(fd) == 0;
  const int why = errno;
  const bool closed = ::close(fd) == 0;
  if (!synced) errno = why;
  if (!synced || !closed) failed(path, synced ? "close" : "fsync");
}

TokenFile::TokenFile(const std::string& path, TokenType type) : path_(path), type_(type), fd_(create(path)) {
  buffer_.reserve(buffer_bytes + 64);
}

TokenFile::~TokenFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!keep_) ::unlink(path_.c_str());
}

void TokenFile::append(const int32_t* tokens, int64_t n) {
  const int64_t step = static_cast<int64_t>(buffer_bytes) / token_bytes(type_);
  for (int64_t k = 0; k < n; k += step) {
    const int64_t some = std::min(step, n - k);
    switch (type_) {
      case TokenType::u8:
        narrow<uint8_t>(buffer_, tokens + k, some, path_, type_);
        break;
      case TokenType::i8:
        narrow<int8_t>(buffer_, tokens + k, some, path_, type_);
        break;
      case TokenType::i16:
        narrow<int16_t>(buffer_, tokens + k, some, path_, type_);
        break;
      case TokenType::u16:
        narrow<uint16_t>(buffer_, tokens + k, some, path_, type_);
        break;
      case TokenType::i32:
        buffer_.append(reinterpret_cast<const char*>(tokens + k), static_cast<size_t>(some) * 4);
        break;
      case TokenType::i64:
        narrow<int64_t>(buffer_, tokens + k, some, path_, type_);
        break;
    }
    if (buffer_.size() >= buffer_bytes) flush();
  }
}

void TokenFile::flush() {
  write_fully(fd_, path_, buffer_.data(), static_cast<int64_t>(buffer_.size()), written_);
  written_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
}

void TokenFile::close() {
  flush();
  const int fd = fd_;
  fd_ = -1;
  sync_and_close(fd, path_);
}

void write_index(const std::string& path, TokenType type, const std::vector<int32_t>& lengths,
                 const std::vector<int64_t>& boundaries) {
  const int fd = create(path);
  try {
    std::string buffer;
    int64_t at = 0;
    auto drain = [&](size_t above) {
      if (buffer.size() <= above) return;
      write_fully(fd, path, buffer.data(), static_cast<int64_t>(buffer.size()), at);
      at += static_cast<int64_t>(buffer.size());
      buffer.clear();
    };
    buffer.append(index_format::magic, sizeof index_format::magic);
    put(buffer, index_format::version);
    put(buffer, static_cast<uint8_t>(type));
    put(buffer, static_cast<uint64_t>(lengths.size()));
    put(buffer, static_cast<uint64_t>(boundaries.size()));
    for (const int32_t n : lengths) put(buffer, n), drain(buffer_bytes);
    int64_t offset = 0;  // bytes; 64 bits, as four documents of 400 million tokens already pass 2^32
    for (const int32_t n : lengths) {
      put(buffer, offset);
      offset += int64_t{n} * token_bytes(type);
      drain(buffer_bytes);
    }
    for (const int64_t b : boundaries) put(buffer, b), drain(buffer_bytes);
    drain(0);
  } catch (...) {
    ::close(fd);
    ::unlink(path.c_str());
    throw;
  }
  try {
    sync_and_close(fd, path);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

void publish(const std::string& prefix) {
  const std::string bin = prefix + ".bin", idx = prefix + ".idx";
  if (::unlink(idx.c_str()) != 0 && errno != ENOENT) failed(idx, "removing the older file");
  for (const auto& [end, name] : {std::pair<std::string, std::string>{".bin", bin}, {".idx", idx}})
    if (std::rename(writing_name(prefix, end).c_str(), name.c_str()) != 0) failed(name, "renaming the finished file");
  auto folder = std::filesystem::path(prefix).parent_path().string();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {  // makes the names durable; file systems that cannot do that for folders say so and are left alone
    (void)::fsync(fd);
    ::close(fd);
  }
}

void remove_unfinished(const std::string& prefix) {
  for (const char* end : {".bin", ".idx"}) ::unlink(writing_name(prefix, end).c_str());
}

}  // namespace orthant
