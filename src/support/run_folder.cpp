// See run_folder.hpp.
#include "support/run_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "orthant/error.hpp"

namespace orthant {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

double now() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

/// Start time of a process in clock ticks since boot, and whether it is a zombie; nothing when there is no such process.
struct ProcessFacts {
  bool exists = false, zombie = false;
  long long started = 0;
};
ProcessFacts process_facts(long long pid) {
  ProcessFacts f;
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(in, line)) return f;
  std::istringstream rest(line.substr(line.rfind(')') + 2));
  std::string field;
  for (int i = 3; rest >> field; ++i) {
    if (i == 3) f.zombie = field == "Z" || field == "X";
    if (i == 22) f.started = std::stoll(field);
  }
  f.exists = true;
  return f;
}

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

std::string job_id() {
  for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"})
    if (const char* v = std::getenv(name); v && *v) return v;
  return "local";
}

void MetricsRow::key(const std::string& name) { text_ += (text_.empty() ? "\"" : ", \"") + name + "\": "; }
void MetricsRow::add(const std::string& name, int64_t value) {
  key(name);
  text_ += std::to_string(value);
}
void MetricsRow::add(const std::string& name, double value) {
  key(name);
  text_ += std::isfinite(value) ? fmt::format("{:.17g}", value) : "NaN";
}
void MetricsRow::add(const std::string& name, const std::vector<std::pair<std::string, double>>& values) {
  MetricsRow inner;
  for (const auto& [k, v] : values) inner.add(k, v);
  key(name);
  text_ += inner.text();
}
void MetricsRow::add(const std::string& name, const std::vector<int64_t>& values) {
  key(name);
  text_ += fmt::format("[{}]", fmt::join(values, ","));
}

RunFolder::RunFolder(const std::string& path) : path_(path) {
  std::error_code ec;
  fs::create_directories(path, ec);
  if (ec) throw DataError("run folder " + path + " cannot be made: " + ec.message() + "; choose another run.output");
  take_lock();
  if (fs::exists(path_ + "/status.json")) {
    json old = json::parse(read_all(path_ + "/status.json"), nullptr, false);
    if (old.is_object() && old.contains("lives") && old["lives"].is_number_integer()) lives_ = old["lives"].get<int64_t>() + 1;
  }
}

RunFolder::~RunFolder() {
  if (metrics_ >= 0) ::close(metrics_);
  std::string lock = path_ + "/run.lock";
  if (!lock_text_.empty() && read_all(lock) == lock_text_) ::unlink(lock.c_str());
}

void RunFolder::take_lock() {
  const std::string lock = path_ + "/run.lock";
  const std::string job = job_id(), host = host_name();
  for (int attempt = 0; attempt < 3; ++attempt) {
    int fd = ::open(lock.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
    if (fd >= 0) {
      lock_text_ = json{{"job", job}, {"host", host}, {"pid", getpid()}, {"started", process_facts(getpid()).started}}.dump() + "\n";
      ssize_t n = ::write(fd, lock_text_.data(), lock_text_.size());
      ::close(fd);
      if (n != static_cast<ssize_t>(lock_text_.size())) {
        ::unlink(lock.c_str());
        throw DataError("run folder " + path_ + " cannot be written: " + std::strerror(errno));
      }
      return;
    }
    if (errno != EEXIST) throw DataError("run folder " + path_ + " cannot be written: " + std::strerror(errno) + "; choose another run.output");

    json owner = json::parse(read_all(lock), nullptr, false);
    struct stat st {};
    double age = ::stat(lock.c_str(), &st) == 0 ? now() - static_cast<double>(st.st_mtime) : 1e9;
    bool free = !owner.is_object();
    std::string who;
    if (!free) {
      auto text = [&](const char* k) { return owner.contains(k) && owner[k].is_string() ? owner[k].get<std::string>() : std::string(); };
      auto number = [&](const char* k) { return owner.contains(k) && owner[k].is_number_integer() ? owner[k].get<long long>() : 0LL; };
      who = "job " + text("job") + ", process " + std::to_string(number("pid")) + " on " + text("host");
      if (text("job") == job && job != "local") {
        free = true;  // a requeued job finds its own lock
      } else if (text("host") == host) {
        ProcessFacts f = process_facts(number("pid"));
        free = !f.exists || f.zombie || f.started != number("started");
      } else if (age > 60) {
        std::string command = "squeue -h -j " + text("job") + " 2>/dev/null";
        bool known_job = text("job") != "local" && text("job").find_first_not_of("0123456789_.") == std::string::npos;
        std::string queued;
        if (known_job)
          if (FILE* p = ::popen(command.c_str(), "r")) {
            char buffer[256];
            while (std::fgets(buffer, sizeof buffer, p)) queued += buffer;
            ::pclose(p);
          }
        free = queued.empty();
      }
    }
    if (!free)
      throw UsageError("run folder " + path_ + " is in use by " + who + " (run.lock); wait for it, or give this run another run.output");
    ::unlink(lock.c_str());
  }
  throw UsageError("run folder " + path_ + ": run.lock keeps coming back; another job starts in the same folder");
}

void RunFolder::write(const std::string& name, const std::string& text) {
  const std::string target = path_ + "/" + name, temporary = target + ".new";
  int fd = ::open(temporary.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
  size_t at = 0;
  while (fd >= 0 && at < text.size()) {
    ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    at += static_cast<size_t>(n);
  }
  bool good = fd >= 0 && at == text.size();
  std::string why = good ? "" : std::strerror(errno);
  if (fd >= 0) ::close(fd);
  if (!good || ::rename(temporary.c_str(), target.c_str()) != 0) {
    if (good) why = std::strerror(errno);
    ::unlink(temporary.c_str());
    throw DataError("cannot write " + target + ": " + why);
  }
}

void RunFolder::open_metrics(int64_t step) {
  const std::string file = path_ + "/metrics.jsonl";
  std::string kept;
  if (fs::exists(file)) {
    std::istringstream in(read_all(file));
    std::string line;
    while (std::getline(in, line)) {
      if (in.eof()) break;  // torn: no newline at its end
      size_t at = line.find("\"step\": ");
      if (at == std::string::npos || std::atoll(line.c_str() + at + 8) > step) continue;
      kept += line + "\n";
    }
  }
  write("metrics.jsonl", kept);
  if (metrics_ >= 0) ::close(metrics_);
  pending_.clear();
  last_row_bytes_ = 0;
  metrics_ = ::open(file.c_str(), O_WRONLY);
  if (metrics_ < 0) throw DataError("cannot open " + file + ": " + std::strerror(errno));
  written_ = static_cast<int64_t>(kept.size());
}

void RunFolder::append(const MetricsRow& row) {
  std::string line = row.text() + "\n";
  last_row_bytes_ = line.size();
  pending_ += line;
  flush();
}

void RunFolder::extend_last(const MetricsRow& row) {
  if (pending_.empty()) written_ -= static_cast<int64_t>(last_row_bytes_);
  else pending_.resize(pending_.size() - last_row_bytes_);
  append(row);
}

void RunFolder::flush() {
  ssize_t n = ::pwrite(metrics_, pending_.data(), pending_.size(), written_);
  if (n == static_cast<ssize_t>(pending_.size())) {
    written_ += n;
    pending_.clear();
    return;
  }
  std::string why = n < 0 ? std::strerror(errno) : "no room";
  if (::ftruncate(metrics_, written_) != 0) why += ", and its torn last line stays";
  throw DataError("cannot append to " + path_ + "/metrics.jsonl: " + why);
}

void RunFolder::status(const RunStatus& s) {
  const std::lock_guard guard(status_lock_);
  if (ended_) return;
  json j = {{"state", s.state}, {"step", s.step}, {"reason", s.reason}, {"code", s.code}, {"lives", lives_}, {"heartbeat", now()}, {"job", job_id()}};
  if (numbers_) {
    for (const auto& [name, value] : numbers_()) j[name] = value;
  }
  write("status.json", j.dump() + "\n");
  ended_ = s.state != "running";
  ::utimensat(AT_FDCWD, (path_ + "/run.lock").c_str(), nullptr, 0);
}

}  // namespace orthant
