// The two halves of a dataset while it is written: tokens streamed to one file, the index to another, and the step
// that gives both their final names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orthant/data.hpp"

namespace orthant {

/// Raw tokens streamed to a file that is removed again unless `keep` was called. Every failed call is a DataError
/// with path, what failed and the system's reason.
class TokenFile {
 public:
  TokenFile(const std::string& path, TokenType type);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return written_ + static_cast<int64_t>(buffer_.size()); }
  void append(const int32_t* tokens, int64_t n);
  /// Writes what is buffered; later `append`s go on behind it.
  void flush();
  /// Flushes, syncs to the disk and closes.
  void close();
  /// The file stays when this object goes.
  void keep() { keep_ = true; }

 private:
  std::string path_;
  TokenType type_;
  std::string buffer_;
  int fd_ = -1;
  int64_t written_ = 0;
  bool keep_ = false;
};

/// Name under which PREFIX.bin or .idx is written (`end`) before it is complete.
std::string writing_name(const std::string& prefix, const std::string& end);
/// Writes all bytes at a place of an open file.
void write_fully(int fd, const std::string& path, const char* data, int64_t n, int64_t at);
/// Syncs and closes; DataError if either fails.
void sync_and_close(int fd, const std::string& path);
/// Writes an index whose sequences lie back to back, and syncs it. The file is removed if that fails.
void write_index(const std::string& path, TokenType type, const std::vector<int32_t>& lengths,
                 const std::vector<int64_t>& boundaries);
/// Renames both halves. An older index goes first, so that a crash in between leaves no index of other tokens.
void publish(const std::string& prefix);
void remove_unfinished(const std::string& prefix);

}  // namespace orthant
