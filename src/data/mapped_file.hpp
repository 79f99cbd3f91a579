// A whole file mapped into memory for reading.
#pragma once

#include <cstdint>
#include <string>

namespace orthant {

/// DataError when the file is missing, unreadable or not a plain file.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const std::string& path() const { return path_; }
  const char* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  std::string path_;
  const char* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace orthant
