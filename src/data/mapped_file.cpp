// A whole file mapped into memory for reading.
#include "data/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "orthant/error.hpp"

namespace orthant {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw DataError(path + ": cannot be opened: " + std::strerror(errno));
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw DataError(path + ": is not a plain file");
  }
  size_ = info.st_size;
  if (size_ > 0) {
    void* at = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
      const std::string why = std::strerror(errno);
      ::close(fd);
      throw DataError(path + ": cannot be mapped into memory (" + std::to_string(size_) + " bytes): " + why);
    }
    data_ = static_cast<const char*>(at);
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), static_cast<size_t>(size_));
}

}  // namespace orthant
