// See goodput.hpp.
#include "train/goodput.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>

#include "orthant/error.hpp"
#include "train/goodput_traces.hpp"

namespace orthant {

namespace {

std::string file_of(const std::string& folder) { return folder + "/goodput.jsonl"; }

struct Log {
  GoodputLedger ledger;
  int64_t bad_lines = 0;
  bool open_end = false;  // its last line lacks a newline
};

/// A line may be torn anywhere: at the end by a kill, and in the midst where a later life went on behind it.
Log read_log(const std::string& file) {
  Log out;
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line);) {
    out.open_end = in.eof();
    if (const std::optional<GoodputEvent> e = parse_event(line)) out.ledger.apply(*e);
    else if (!line.empty()) ++out.bad_lines;
  }
  return out;
}

bool is_open(const GoodputLedger& ledger) {
  return ledger.phase() == GoodputLedger::Phase::starting || ledger.phase() == GoodputLedger::Phase::training;
}

}  // namespace

double wall_clock() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

Goodput::Goodput(const std::string& folder, GoodputFacts facts, std::function<double()> clock) : file_(file_of(folder)), clock_(std::move(clock)) {
  Log log = read_log(file_);
  ledger_ = std::move(log.ledger);
  if (log.open_end) pending_ += '\n';
  file_id_ = ::open(file_.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
  const double present = clock_(), t = facts.begun > 0 ? std::min(facts.begun, present) : present;
  if (is_open(ledger_)) add(closing_event(ledger_, folder, t));
  GoodputEvent e;
  e.t = std::max(t, ledger_.last());
  e.life = facts.life;
  e.job = facts.job;
  e.ranks = facts.ranks;
  e.nodes = facts.nodes;
  add(e);
}

Goodput::~Goodput() {
  if (file_id_ >= 0) ::close(file_id_);
}

double Goodput::now() const { return std::max(clock_(), ledger_.last()); }

GoodputEvent Goodput::event(GoodputEvent::Kind kind) const {
  GoodputEvent e;
  e.kind = kind;
  e.t = now();
  e.step = step_;
  e.waited = waited_;
  e.stall = stall_;
  e.saves = saves_;
  e.durables = durables_;
  e.durable = durable_;
  e.sign = sign_;
  return e;
}

void Goodput::add(const GoodputEvent& event) {
  ledger_.apply(event);
  pending_ += to_line(event);
  flush();
}

/// What has no room stays, from the byte on that is missing: the next line heals the file.
void Goodput::flush() {
  errno = EBADF;
  while (!pending_.empty()) {
    const ssize_t n = file_id_ < 0 ? -1 : ::write(file_id_, pending_.data(), pending_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (!told_) std::fprintf(stderr, "orthant: cannot append to %s: %s (training goes on)\n", file_.c_str(), n < 0 ? std::strerror(errno) : "no room");
      told_ = true;
      return;
    }
    pending_.erase(0, static_cast<size_t>(n));
  }
}

void Goodput::ready(int64_t step, double load) {
  const std::lock_guard guard(lock_);
  if (ended_) return;
  step_ = step;
  GoodputEvent e = event(GoodputEvent::Kind::ready);
  e.load = load;
  sign_ = e.t;
  add(e);
}

void Goodput::step(int64_t step) {
  const std::lock_guard guard(lock_);
  step_ = step;
  sign_ = now();
}

void Goodput::stalled(double seconds, Wait what) {
  const std::lock_guard guard(lock_);
  waited_ += seconds;
  if (what == Wait::save) stall_ += seconds;
  sign_ = now();
}

void Goodput::save(int64_t step, Wait what) {
  const std::lock_guard guard(lock_);
  if (ended_) return;
  step_ = step;
  if (what == Wait::save) ++saves_;
  const GoodputEvent e = event(GoodputEvent::Kind::save);
  sign_ = e.t;
  add(e);
}

void Goodput::saved(double seconds) {
  const std::lock_guard guard(lock_);
  ++durables_;
  durable_ += seconds;
}

void Goodput::rollback(int64_t to, double seconds, const std::string& why) {
  const std::lock_guard guard(lock_);
  if (ended_) return;
  step_ = to;
  GoodputEvent e = event(GoodputEvent::Kind::rollback);
  e.load = seconds;
  e.reason = why;
  sign_ = e.t;
  add(e);
}

void Goodput::end(const std::string& state, int64_t step, const std::string& reason, int code) {
  const std::lock_guard guard(lock_);
  if (ended_) return;
  ended_ = true;
  step_ = step;
  GoodputEvent e = event(GoodputEvent::Kind::end);
  e.state = state;
  e.reason = reason.substr(0, reason.find('\n'));
  e.code = code;
  add(e);
}

TimeBins Goodput::bins() const {
  const std::lock_guard guard(lock_);
  return ended_ ? ledger_.bins() : ledger_.bins(now(), waited_);
}

std::vector<std::pair<std::string, double>> Goodput::numbers() const {
  const TimeBins b = bins();
  const std::lock_guard guard(lock_);
  return {{"effective", b.effective()}, {"trained_s", b.trained},     {"saving_s", b.saving}, {"lost_s", b.lost},
          {"start_s", b.start},         {"restart_s", b.restart},     {"detection_s", b.detection}, {"gap_s", b.gap},
          {"idle_s", b.idle},           {"stops", static_cast<double>(ledger_.stops().size())}};
}

GoodputView read_goodput(const std::string& folder) {
  const std::string file = file_of(folder);
  if (!std::ifstream(file))
    throw DataError(file + " cannot be read: a run folder (run.output of the deck) has it from its first start on; runs of older versions have none");
  Log log = read_log(file);
  if (log.ledger.phase() == GoodputLedger::Phase::none)
    throw DataError(file + ": no life of the run begins in it; it was written by another program, or cut off");
  const std::optional<StatusTrace> status = read_status(folder);
  GoodputView out;
  out.bad_lines = log.bad_lines;
  out.state = status ? status->state : "";
  out.as_of = log.ledger.last();
  out.step = log.ledger.step();
  out.bins = log.ledger.bins();
  if (is_open(log.ledger)) {
    const LastSign sign = last_sign(log.ledger, status, folder, wall_clock());
    out.as_of = sign.t;
    out.step = sign.step;
    out.bins = log.ledger.bins(sign.t, sign.waited);
  }
  out.ledger = std::move(log.ledger);
  return out;
}

}  // namespace orthant
