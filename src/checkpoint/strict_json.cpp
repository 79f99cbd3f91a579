// Strict reading of JSON, atomic writing of small files.
#include "checkpoint/strict_json.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "orthant/error.hpp"

namespace orthant {

std::string read_small_file(const std::string& path, int64_t limit) {
  std::error_code ec;
  const auto status = std::filesystem::status(path, ec);
  if (!std::filesystem::exists(status)) throw DataError(path + ": no such file");
  if (!std::filesystem::is_regular_file(status)) throw DataError(path + ": not a regular file");
  const auto size = std::filesystem::file_size(path, ec);
  if (ec) throw DataError(path + ": cannot read its size: " + ec.message());
  if (size > static_cast<uintmax_t>(limit)) {
    throw DataError(path + ": " + std::to_string(size) + " bytes, more than the " + std::to_string(limit) +
                    " such a file may have");
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(size, '\0');
  if (!in || !in.read(text.data(), static_cast<std::streamsize>(size))) throw DataError(path + ": cannot be read");
  return text;
}

nlohmann::json parse_json_object(const std::string& text, const std::string& where) {
  using json = nlohmann::json;
  // the parser takes a NUL for the end of its input and would ignore what follows
  if (text.find('\0') != std::string::npos) throw DataError(where + ": not JSON (it contains a zero byte)");
  std::vector<std::set<std::string>> names;  // of the objects that are open, outermost first
  auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > 32) throw DataError(where + ": JSON nested deeper than 32 levels");
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& name = value.get_ref<const std::string&>();
      if (!names.back().insert(name).second) throw DataError(where + ": the name \"" + name + "\" is given twice");
    }
    return true;
  };
  json parsed;
  try {
    parsed = json::parse(text, watch);
  } catch (const json::exception& e) {
    throw DataError(where + ": not valid JSON: " + e.what());
  }
  if (!parsed.is_object()) throw DataError(where + ": holds a JSON " + parsed.type_name() + ", not an object {...}");
  return parsed;
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw DataError(folder + ": cannot open the folder: " + std::strerror(errno));
  const int rc = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  // some file systems have no sync of folders and say EINVAL; the rename is then as durable as they make it
  if (rc != 0 && error != EINVAL) throw DataError(folder + ": cannot sync the folder: " + std::strerror(error));
}

void write_file_atomically(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".writing-" + std::to_string(::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) throw DataError(temporary + ": cannot create: " + std::strerror(errno));
  size_t done = 0;
  int error = 0;
  while (done < text.size() && error == 0) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n >= 0)
      done += static_cast<size_t>(n);
    else if (errno != EINTR)
      error = errno;
  }
  if (error == 0 && ::fsync(fd) != 0) error = errno;
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    throw DataError(path + ": cannot write: " + std::strerror(error));
  }
  sync_folder(folder_of(path));
}

}  // namespace orthant
