// See safetensors_writer.hpp.
#include "checkpoint/safetensors_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/float_formats.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/strict_json.hpp"
#include "orthant/error.hpp"

namespace orthant {

int64_t TensorSpec::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}
int64_t TensorSpec::bytes() const { return elements() * bits_of_file_dtype(dtype) / 8; }

std::string file_dtype(const std::string& text) {
  static const std::map<std::string, std::string> names = {{"fp32", "F32"}, {"bf16", "BF16"}, {"fp16", "F16"},
                                                           {"fp64", "F64"}, {"F32", "F32"},   {"BF16", "BF16"},
                                                           {"F16", "F16"},  {"F64", "F64"}};
  const auto at = names.find(text);
  if (at == names.end()) throw UsageError("dtype \"" + text + "\" cannot be written; fp32, bf16, fp16 or fp64 can");
  return at->second;
}

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), temporary_(path_ + ".writing-" + std::to_string(::getpid())) {
  for (const TensorSpec& t : tensors) {
    if (!is_weight_dtype(t.dtype))
      throw UsageError(path_ + ": tensor \"" + t.name + "\": dtype \"" + t.dtype +
                       "\" cannot be written; F32, BF16, F16 or F64 can");
    for (int64_t d : t.shape) ORTHANT_ENSURE(d >= 0, "negative dim in the shape of " + t.name);
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    // F64 > F32 > BF16 > F16: the reference library's order keeps every tensor aligned to its own width
    auto rank = [](const std::string& d) { return d == "F64" ? 0 : d == "F32" ? 1 : d == "BF16" ? 2 : 3; };
    return rank(a.dtype) != rank(b.dtype) ? rank(a.dtype) < rank(b.dtype) : a.name < b.name;
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t at = 0;
  for (const TensorSpec& t : tensors) {
    ORTHANT_ENSURE(slots_.emplace(t.name, Slot{t, at, 0}).second && t.name != "__metadata__",
                   "tensor " + t.name + " declared twice or under a reserved name");
    nlohmann::ordered_json entry;
    entry["dtype"] = t.dtype;
    entry["shape"] = t.shape;
    entry["data_offsets"] = {at, at + t.bytes()};
    // operator[] of an ordered object searches from its start: quadratic in the number of tensors
    header.get_ref<nlohmann::ordered_json::object_t&>().push_back({t.name, std::move(entry)});
    at += t.bytes();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  for (auto& [name, slot] : slots_) slot.offset += static_cast<int64_t>(8 + length);

  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("cannot create");
  // the whole length at once: a full disk is found here on most file systems, not after an hour of writing
  const int64_t total = static_cast<int64_t>(8 + length) + at;
  if (const int rc = ::posix_fallocate(fd_, 0, total); rc == ENOSPC || rc == EFBIG) {
    errno = rc;
    fail("no room");
  }
  put(&length, 8, 0);
  put(text.data(), static_cast<int64_t>(text.size()), 8);
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
}

void SafetensorsWriter::fail(const char* what) {
  const std::string message = path_ + ": " + what + ": " + std::strerror(errno);
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
    ::unlink(temporary_.c_str());
  }
  throw DataError(message);
}

void SafetensorsWriter::put(const void* data, int64_t bytes, int64_t offset) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, from, static_cast<size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("cannot write");
    from += n;
    bytes -= n;
    offset += n;
  }
}

void SafetensorsWriter::write(const std::string& tensor, const float* values, int64_t count) {
  ORTHANT_ENSURE(fd_ >= 0, "write after finish of " + path_);
  const auto at = slots_.find(tensor);
  ORTHANT_ENSURE(at != slots_.end(), "tensor " + tensor + " was not declared for " + path_);
  Slot& slot = at->second;
  ORTHANT_ENSURE(count >= 0 && count <= slot.spec.elements() - slot.written,
                 "more data than tensor " + tensor + " has");
  const int64_t width = bits_of_file_dtype(slot.spec.dtype) / 8;
  constexpr int64_t piece = 1 << 18;
  for (int64_t done = 0; done < count; done += piece) {
    const int64_t n = std::min(piece, count - done);
    const float* from = values + done;
    const int64_t offset = slot.offset + slot.written * width;
    if (slot.spec.dtype == "F32") {
      put(from, n * width, offset);
    } else {
      buffer_.resize(static_cast<size_t>(n * width));
      for (int64_t i = 0; i < n; ++i) {
        unsigned char* to = buffer_.data() + i * width;
        if (width == 8) {
          const double wide = from[i];
          std::memcpy(to, &wide, 8);
        } else {
          const uint16_t half = slot.spec.dtype == "BF16" ? bf16_from_float(from[i]) : f16_from_float(from[i]);
          std::memcpy(to, &half, 2);
        }
      }
      put(buffer_.data(), n * width, offset);
    }
    slot.written += n;
  }
}

void SafetensorsWriter::finish() {
  ORTHANT_ENSURE(fd_ >= 0, "finish called twice for " + path_);
  for (const auto& [name, slot] : slots_) {
    ORTHANT_ENSURE(slot.written == slot.spec.elements(),
                   "tensor " + name + " of " + path_ + " was not fully written");
  }
  if (::fsync(fd_) != 0) fail("cannot sync");
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    ::unlink(temporary_.c_str());
    fail("cannot finish");
  }
  sync_folder(folder_of(path_));
}

}  // namespace orthant
