// See time_left.hpp.
#include "train/time_left.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "deck/keys_run.hpp"

extern char** environ;

namespace orthant {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }
double steady() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// When the program was loaded: reading data and checkpoints counts against a limit too.
const double program_begun = now();

constexpr double squeue_patience = 10;  // seconds; a controller under load is no reason to wait at every start

/// All of the text is one number without a sign.
std::optional<long> whole_number(std::string_view text) {
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// What comes out of the pipe until its end, or nothing past the deadline.
std::optional<std::string> read_until(int fd, double deadline) {
  std::string out;
  std::array<char, 512> buffer;
  for (;;) {
    const double left = deadline - steady();
    if (left <= 0) return std::nullopt;
    pollfd wait{fd, POLLIN, 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(left * 1000) + 1);
    if (ready < 0 && errno != EINTR) return std::nullopt;
    if (ready <= 0) continue;
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno != EINTR) return std::nullopt;
    if (n == 0) return out;
    if (n > 0) out.append(buffer.data(), static_cast<size_t>(n));
  }
}

/// Waits for the child's end, at most until the deadline; past it the child is killed. True when it ended with 0.
bool ended_well(pid_t child, double deadline) {
  int status = 0;
  for (;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (ended < 0 && errno != EINTR) return false;
    if (steady() > deadline) break;
    ::poll(nullptr, 0, 5);
  }
  ::kill(child, SIGKILL);
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return false;
}

}  // namespace

std::optional<double> slurm_seconds(const std::string& text) {
  std::string_view rest = text;
  while (!rest.empty() && (rest.back() == ' ' || rest.back() == '\n')) rest.remove_suffix(1);
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  long days = 0;
  const size_t dash = rest.find('-');
  if (dash != std::string_view::npos) {
    const auto d = whole_number(rest.substr(0, dash));
    if (!d) return std::nullopt;
    days = *d;
    rest.remove_prefix(dash + 1);
  }
  std::vector<long> parts;
  for (;;) {
    const size_t colon = rest.find(':');
    const auto part = whole_number(rest.substr(0, colon));
    if (!part) return std::nullopt;
    parts.push_back(*part);
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (parts.size() > 3) return std::nullopt;
  // behind days the first part is hours; without them the last one is seconds
  double seconds = 0;
  if (dash != std::string_view::npos) parts.resize(3);
  for (long part : parts) seconds = 60 * seconds + static_cast<double>(part);
  return 86400.0 * static_cast<double>(days) + seconds;
}

std::optional<std::string> first_line_of(const std::vector<std::string>& words, double patience) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, ends[1], 1);
  posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  // not fork: this process may hold memory that a network card writes to
  const int error = ::posix_spawnp(&child, arguments[0], &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  ::close(ends[1]);
  std::optional<std::string> out;
  if (error == 0) {
    const double deadline = steady() + patience;
    out = read_until(ends[0], deadline);
    if (!ended_well(child, out ? deadline : 0)) out.reset();
  }
  ::close(ends[0]);
  if (out) out->resize(std::min(out->size(), out->find('\n')));
  return out;
}

TimeSources system_time() {
  return {now, program_begun,
          [](const char* name) -> std::optional<std::string> {
            const char* value = std::getenv(name);
            if (!value || !*value) return std::nullopt;
            return value;
          },
          [](const std::string& job) { return first_line_of({"squeue", "-h", "-j", job, "-o", "%L"}, squeue_patience); }};
}

TimeLeft::TimeLeft(const Deck& deck, bool lead) : sources_(system_time()) {
  if (!lead) return;
  std::optional<double> limit;
  if (deck.has(keys::run::time_limit)) limit = deck[keys::run::time_limit];
  *this = TimeLeft(limit, std::move(sources_));
}

TimeLeft::TimeLeft(std::optional<double> time_limit, TimeSources sources) : sources_(std::move(sources)) {
  if (time_limit) {
    end_ = sources_.begun + *time_limit;
    return;
  }
  closing_ = closing_seconds;
  if (const auto text = sources_.variable("SLURM_JOB_END_TIME")) {
    if (const auto end = whole_number(*text)) end_ = static_cast<double>(*end);
    return;
  }
  if (const auto job = sources_.variable("SLURM_JOB_ID"))
    if (const auto text = sources_.queue(*job))
      if (const auto seconds = slurm_seconds(*text)) end_ = sources_.now() + *seconds;
}

std::optional<double> TimeLeft::left() const {
  if (!end_) return std::nullopt;
  return *end_ - sources_.now();
}

bool TimeLeft::over(double step_seconds, double save_seconds) const {
  const auto seconds = left();
  return seconds && *seconds - closing_ < reserve(step_seconds, save_seconds);
}

}  // namespace orthant
