// The folder of checkpoints.
#include "checkpoint/folders.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include "orthant/error.hpp"

namespace orthant {

namespace fs = std::filesystem;

[[noreturn]] static void fail(const std::string& path, const std::string& what) {
  throw DataError(path + ": " + what + ": " + std::strerror(errno));
}

Descriptor::Descriptor(const std::string& path, int flags, int mode)
    : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {
  if (fd_ < 0) fail(path, "cannot be opened");
}
Descriptor::~Descriptor() { ::close(fd_); }

void sync_path(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  // Some file systems have no fsync for folders; there is then nothing more to wait for.
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail(path, "cannot be brought to disk");
}

void write_file_durably(const std::string& path, const std::string& content) {
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  for (size_t done = 0; done < content.size();) {
    const ssize_t put = ::write(file.get(), content.data() + done, content.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail(path, "cannot be written");
    done += static_cast<size_t>(put);
  }
  if (::fsync(file.get()) != 0) fail(path, "cannot be brought to disk");
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw DataError(path + ": cannot be made: " + error.message());
  if (!fs::is_directory(path, error)) throw DataError(path + ": is not a folder");
}

void remove_folder(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw DataError(path + ": cannot be removed: " + error.message());
}

bool reserve_blocks(const std::string& path, int64_t bytes) {
  const Descriptor file(path, O_WRONLY);
  while (::fallocate(file.get(), 0, 0, bytes) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) return false;
    fail(path, fmt::format("no room for {} bytes", bytes));
  }
  return true;
}

void require_space(const std::string& folder, int64_t bytes, int64_t written, const std::string& probe_name) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) fail(folder, "cannot tell the free space");
  const double free = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  if (free < static_cast<double>(bytes)) {
    throw DataError(
        fmt::format("{}: a checkpoint needs {} bytes, {:.0f} are free; free some space, lower "
                    "checkpoint.keep, or set checkpoint.folder to another place",
                    folder, bytes, free));
  }
  const std::string probe = folder + "/" + probe_name;
  try {
    write_file_durably(probe, "");
    if (!reserve_blocks(probe, bytes)) write_file_durably(probe, std::string(static_cast<size_t>(written), '\0'));
  } catch (...) {
    ::unlink(probe.c_str());
    throw;
  }
  if (::unlink(probe.c_str()) != 0) fail(probe, "cannot be removed");
}

std::string step_folder_name(int64_t step) { return fmt::format("step-{:08d}", step); }

static std::optional<int64_t> step_of(const std::string& name) {
  constexpr size_t prefix = 5;  // "step-"
  if (name.rfind("step-", 0) != 0 || name.size() < prefix + 8 || name.size() > prefix + 18) return std::nullopt;
  if (name.find_first_not_of("0123456789", prefix) != std::string::npos) return std::nullopt;
  return std::stoll(name.substr(prefix));
}

std::vector<StepFolder> list_step_folders(const std::string& checkpoints_folder) {
  std::vector<StepFolder> good, bad;
  std::error_code error;
  if (!fs::exists(checkpoints_folder, error) && !error) return good;
  for (fs::directory_iterator entry(checkpoints_folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto step = step_of(entry->path().filename().string());
    if (!step) continue;
    StepFolder folder;
    folder.path = entry->path().string();
    folder.step = *step;
    try {
      folder.manifest = read_manifest(folder.path);
      for (const ManifestFile& file : folder.manifest.files) {
        if (folder.problem.empty()) folder.problem = problem_of(folder.path, file, false);
      }
    } catch (const DataError& e) {
      folder.problem = e.what();
    }
    (folder.problem.empty() ? good : bad).push_back(std::move(folder));
  }
  if (error) throw DataError(checkpoints_folder + ": cannot be listed: " + error.message());
  std::sort(good.begin(), good.end(), [](const StepFolder& a, const StepFolder& b) {
    return std::pair(a.manifest.sequence, a.step) > std::pair(b.manifest.sequence, b.step);
  });
  std::sort(bad.begin(), bad.end(), [](const StepFolder& a, const StepFolder& b) { return a.step > b.step; });
  for (StepFolder& folder : bad) {
    const auto at = std::find_if(good.begin(), good.end(),
                                 [&](const StepFolder& g) { return g.problem.empty() && g.step <= folder.step; });
    good.insert(at, std::move(folder));
  }
  return good;
}

void remove_leftovers(const std::string& checkpoints_folder) {
  std::error_code error;
  std::vector<std::string> found;
  for (fs::directory_iterator entry(checkpoints_folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.rfind(".writing-", 0) == 0 || name.rfind(".removing-", 0) == 0) found.push_back(entry->path().string());
  }
  for (const std::string& path : found) remove_folder(path);
}

static std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void publish_folder(const std::string& temporary, const std::string& final_path) {
  if (::rename(temporary.c_str(), final_path.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) fail(final_path, "cannot get its final name");
    // One of the same step is there (the run went back, or it is damaged). Swapping both names at once leaves no
    // instant without a complete one; where the file system cannot swap, it is moved aside first.
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) == 0) {
      sync_path(parent_of(final_path));
      remove_folder(temporary);
      return;
    }
    const std::string aside = parent_of(final_path) + "/.removing-" + fs::path(final_path).filename().string();
    if (::rename(final_path.c_str(), aside.c_str()) != 0) fail(final_path, "cannot be moved aside");
    if (::rename(temporary.c_str(), final_path.c_str()) != 0) {
      const int why = errno;
      ::rename(aside.c_str(), final_path.c_str());
      errno = why;
      fail(final_path, "cannot get its final name");
    }
    sync_path(parent_of(final_path));
    remove_folder(aside);
    return;
  }
  sync_path(parent_of(final_path));
}

void point_latest(const std::string& checkpoints_folder, const std::string& name) {
  const std::string temporary = checkpoints_folder + "/.latest-new", path = checkpoints_folder + "/latest";
  write_file_durably(temporary, name + "\n");
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail(path, "cannot be replaced");
  sync_path(checkpoints_folder);
}

void remove_older(const std::string& checkpoints_folder, const std::string& saved, int keep) {
  int kept = 0;
  for (const StepFolder& folder : list_step_folders(checkpoints_folder)) {
    if (!folder.problem.empty()) continue;
    if (kept++ < keep || fs::path(folder.path).filename() == saved) continue;
    // Renamed first, so that one whose removal is cut short does not look like a damaged checkpoint.
    const std::string aside = checkpoints_folder + "/.removing-" + fs::path(folder.path).filename().string();
    if (::rename(folder.path.c_str(), aside.c_str()) != 0) fail(folder.path, "cannot be removed");
    remove_folder(aside);
  }
}

}  // namespace orthant
