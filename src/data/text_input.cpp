// Text files as input of the tokenizer.
#include "data/text_input.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "orthant/error.hpp"

namespace orthant {

static constexpr int64_t block_bytes = int64_t{1} << 20;

InputFile::InputFile(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (fd_ < 0) throw DataError(path + ": cannot be opened: " + std::strerror(errno));
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw DataError(path + ": is not a plain file; give text files or JSON lines (.jsonl)");
  }
  size_ = info.st_size;
}

InputFile::~InputFile() { ::close(fd_); }

int64_t InputFile::read(int64_t at, char* to, int64_t n) const {
  int64_t got = 0;
  while (got < n) {
    const ssize_t some = ::pread(fd_, to + got, static_cast<size_t>(std::min(n - got, int64_t{1} << 30)), at + got);
    if (some < 0 && errno == EINTR) continue;
    if (some < 0)
      throw DataError(path_ + ": reading at byte " + std::to_string(at + got) + " failed: " + std::strerror(errno));
    if (some == 0) break;
    got += some;
  }
  return got;
}

int64_t InputFile::mark_bytes() const {
  char start[3];
  return read(0, start, 3) == 3 && std::memcmp(start, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

static bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool has_json_lines(const std::string& path) {
  return ends_with(path, ".jsonl") || ends_with(path, ".ndjson") || ends_with(path, ".json");
}

void refuse_compressed(const std::string& path) {
  for (const char* end : {".gz", ".zst", ".xz", ".bz2", ".zip", ".parquet"})
    if (ends_with(path, end))
      throw UsageError(path + ": " + end +
                       " files are not read by this build; unpack them to text or JSON lines first");
}

LineReader::LineReader(const InputFile& file, int64_t begin, int64_t end) : file_(file), end_(end) {
  base_ = begin;
  if (begin == 0) return;
  base_ = begin - 1;  // the line before ends here or later: pass over the rest of it
  std::string_view rest;
  int64_t offset = 0;
  end_ = begin;
  next(rest, offset);
  end_ = end;
}

bool LineReader::fill() {
  if (file_done_) return false;
  buffer_.erase(0, at_);
  base_ += static_cast<int64_t>(at_);
  at_ = 0;
  const size_t kept = buffer_.size();
  // a line longer than the buffer doubles it, so that its length costs linear time
  const auto want = std::max(block_bytes, static_cast<int64_t>(kept));
  buffer_.resize(kept + static_cast<size_t>(want));
  const int64_t got = file_.read(base_ + static_cast<int64_t>(kept), buffer_.data() + kept, want);
  buffer_.resize(kept + static_cast<size_t>(got));
  file_done_ = got < want;
  return got > 0;
}

bool LineReader::next(std::string_view& line, int64_t& offset) {
  offset = base_ + static_cast<int64_t>(at_);
  if (offset >= end_) return false;
  size_t searched = 0;
  while (true) {
    const char* from = buffer_.data() + at_;
    const size_t held = buffer_.size() - at_;
    const void* newline = held > searched ? std::memchr(from + searched, '\n', held - searched) : nullptr;
    if (newline != nullptr) {
      const auto length = static_cast<size_t>(static_cast<const char*>(newline) - from);
      line = {from, length};
      at_ += length + 1;
      return true;
    }
    searched = held;
    if (fill()) continue;
    if (held == 0) return false;
    line = {buffer_.data() + at_, buffer_.size() - at_};  // the last line needs no newline
    at_ = buffer_.size();
    return true;
  }
}

int64_t line_number(const InputFile& file, int64_t offset) {
  std::string block(static_cast<size_t>(block_bytes), '\0');
  int64_t lines = 1;
  for (int64_t at = 0; at < offset; at += block_bytes) {
    const int64_t got = file.read(at, block.data(), std::min(block_bytes, offset - at));
    lines += std::count(block.begin(), block.begin() + got, '\n');
  }
  return lines;
}

}  // namespace orthant
