// Text files as input of the tokenizer: plain text (one document a file) and JSON lines (one document a line).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// An open file read from any position; every failed call is a DataError with path and reason.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  /// Up to n bytes from `at`; fewer only at the end of the file.
  int64_t read(int64_t at, char* to, int64_t n) const;
  /// Bytes of a byte-order mark (UTF-8) at the start: 3 or 0.
  int64_t mark_bytes() const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

/// .jsonl, .ndjson and .json hold JSON lines.
bool has_json_lines(const std::string& path);
/// UsageError for names that say the file is compressed.
void refuse_compressed(const std::string& path);

/// The lines of a file whose first byte lies in [begin, end), without their newline: cutting a file at any places
/// gives each line to exactly one part.
class LineReader {
 public:
  LineReader(const InputFile& file, int64_t begin, int64_t end);
  /// False after the last line. `line` is valid until the next call; `offset` is the place of its first byte.
  bool next(std::string_view& line, int64_t& offset);

 private:
  bool fill();
  const InputFile& file_;
  int64_t end_;
  std::string buffer_;
  size_t at_ = 0;     // first byte of the next line within the buffer
  int64_t base_ = 0;  // place of the buffer's first byte in the file
  bool file_done_ = false;
};

/// Number of the line (from 1) that starts at `offset`.
int64_t line_number(const InputFile& file, int64_t offset);

}  // namespace orthant
