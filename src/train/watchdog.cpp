// See watchdog.hpp.
#include "train/watchdog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <map>

#include "orthant/error.hpp"
#include "support/agree.hpp"
#include "support/cores.hpp"
#include "support/helper_thread.hpp"

namespace orthant {

using namespace std::chrono_literals;

namespace {

constexpr size_t steps_kept = 50;
constexpr int tag_ask = 1, tag_state = 2;
constexpr auto tick = 200ms;
constexpr auto patience = 5s;     // for the words of other ranks
constexpr auto second_try = 10s;  // before a rank other than 0 speaks up

/// A state as bytes: step, flag, place, calls.
std::string packed(const RankState& s) {
  return fmt::format("{}\n{}\n{}\n{}", s.step, s.waits ? 1 : 0, s.at, s.calls);
}

RankState unpacked(int rank, const std::string& text) {
  const size_t a = text.find('\n'), b = text.find('\n', a + 1), c = text.find('\n', b + 1);
  RankState s;
  s.rank = rank;
  s.step = std::stoll(text.substr(0, a));
  s.waits = text.substr(a + 1, b - a - 1) == "1";
  s.at = text.substr(b + 1, c - b - 1);
  s.calls = text.substr(c + 1);
  return s;
}

std::string call_text(const CallRecord& c) {
  return fmt::format("{} {} #{}, {}, {} bytes", name_of(c.axis), c.op, c.number, c.site, c.bytes);
}

}  // namespace

double step_limit(double given, std::vector<double> seconds) {
  if (given > 0) return given;
  if (seconds.size() < 3) return 600;
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  return std::max(60.0, 10 * seconds[seconds.size() / 2]);
}

std::string hang_report(double seconds, double limit, int ranks, std::vector<RankState> states,
                        const std::function<std::string(int)>& who) {
  std::sort(states.begin(), states.end(), [](const RankState& a, const RankState& b) { return a.rank < b.rank; });
  std::map<std::string, std::vector<int>> places;
  std::vector<char> there(static_cast<size_t>(ranks), 0);
  int64_t step = 0;
  for (const RankState& s : states) {
    places[s.at].push_back(s.rank);
    there[static_cast<size_t>(s.rank)] = 1;
    step = std::max(step, s.step);
  }
  std::string out = fmt::format("hang: step {} takes longer than {:.1f} s (limit {:.1f} s, guard.watchdog_s)", step,
                                seconds, limit);
  // The suspects first: those without a word, else those that are in no call while others wait.
  for (int r = 0; r < ranks; ++r)
    if (!there[static_cast<size_t>(r)]) out += fmt::format("\n  no word from {}: stopped, dead or cut off", who(r));
  for (const bool waits : {false, true})
    for (const auto& [at, members] : places) {
      const auto first =
          std::find_if(states.begin(), states.end(), [&](const RankState& s) { return s.rank == members[0]; });
      if (first->waits != waits) continue;
      out += fmt::format("\n  {} rank{} {} {}", waits ? "waiting:" : "elsewhere:", members.size() > 1 ? "s" : "",
                         ranges_text(members), at);
      if (members.size() == 1) out += fmt::format(" [{}]", who(members[0]));
    }
  const bool all_wait = std::all_of(states.begin(), states.end(), [](const RankState& s) { return s.waits; });
  for (const RankState& s : states)
    if ((all_wait || !s.waits) && !s.calls.empty()) {
      out += fmt::format("\n  last calls of rank {}, newest last:{}", s.rank, s.calls);
      break;
    }
  return out;
}

Watchdog::Watchdog(const Mesh& mesh, const Traffic& traffic, const Timers& timers, double given,
                   std::function<void(const std::string&)> on_hang)
    : rank_(mesh.rank()),
      ranks_(mesh.ranks()),
      traffic_(traffic),
      timers_(timers),
      given_(given),
      on_hang_(std::move(on_hang)) {
  // Names now: nobody can be asked later.
  names_ = texts_of_ranks(mesh.cart(), mesh.where());
  if (threads_may_communicate()) ORTHANT_MPI(MPI_Comm_dup(mesh.cart(), &comm_));
  thread_ = helper_thread("watchdog", [this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard guard(lock_);
    ends_ = true;
  }
  signal_.notify_all();
  thread_.join();
  if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
}

void Watchdog::begin(int64_t step, double times, double least) {
  const std::lock_guard guard(lock_);
  step_ = step;
  times_ = times;
  least_ = least;
  begin_ = Clock::now();
  lost_ = {};
  armed_ = true;
}

void Watchdog::end(bool counts) {
  const std::lock_guard guard(lock_);
  if (armed_ && counts) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    if (seconds_.size() < steps_kept)
      seconds_.push_back(seconds);
    else
      seconds_[static_cast<size_t>(step_) % steps_kept] = seconds;
  }
  armed_ = false;
}

double Watchdog::limit_now() const { return std::max(step_limit(given_, seconds_) * times_, least_); }

double Watchdog::limit() const {
  const std::lock_guard guard(lock_);
  return limit_now();
}

bool Watchdog::late() const {
  const std::lock_guard guard(lock_);
  if (!armed_) return false;
  return std::chrono::duration<double>(Clock::now() - begin_ - lost_).count() > limit_now();
}

/// Another rank's watchdog wants to know.
bool Watchdog::asked() const {
  if (comm_ == MPI_COMM_NULL) return false;
  int there = 0;
  MPI_Status status;
  ORTHANT_MPI(MPI_Iprobe(rank_ == 0 ? MPI_ANY_SOURCE : 0, rank_ == 0 ? tag_state : tag_ask, comm_, &there, &status));
  return there != 0;
}

void Watchdog::watch() {
  auto last = Clock::now();
  for (;;) {
    {
      std::unique_lock guard(lock_);
      if (signal_.wait_for(guard, tick, [this] { return ends_; })) return;
      // A process that was stopped, or a machine that slept, is no hang of the others' making.
      const auto now = Clock::now();
      if (now - last > 10 * tick) lost_ += now - last;
      last = now;
    }
    if (late() || asked()) {
      try {
        report();
      } catch (const std::exception& e) {  // the report failed; the hang remains one
        std::fprintf(stderr, "orthant: rank %d: a step hangs, and the ranks could not be asked: %s\n", rank_,
                     e.what());
      }
      MPI_Abort(comm_ == MPI_COMM_NULL ? MPI_COMM_SELF : comm_, static_cast<int>(Exit::fault));
    }
  }
}

RankState Watchdog::state() const {
  RankState s;
  s.rank = rank_;
  {
    const std::lock_guard guard(lock_);
    s.step = step_;
    if (!armed_) s.at = "between steps";
  }
  const std::string phase = timers_.now();
  if (!phase.empty())
    s.at = "in phase \"" + phase + "\"";
  else if (s.at.empty()) {
    s.at = "in control messages of the step";  // agreements and small sums, which are no calls of the ring
    s.waits = true;
  }
  const std::vector<CallRecord> ring = traffic_.ring();
  for (const CallRecord& c : ring)
    if (c.waiting) {
      s.waits = true;
      s.at = "in " + call_text(c);
    }
  const size_t shown = 8, first = ring.size() > shown ? ring.size() - shown : 0;
  for (size_t i = first; i < ring.size(); ++i)
    s.calls += "\n    " + call_text(ring[i]) +
               (ring[i].finished  ? ""
                : ring[i].waiting ? ": waiting"
                                  : ": under way");
  return s;
}

std::vector<RankState> Watchdog::collect() const {
  std::vector<RankState> states = {state()};
  if (comm_ == MPI_COMM_NULL) return states;
  std::vector<MPI_Request> requests(static_cast<size_t>(ranks_), MPI_REQUEST_NULL);
  for (int r = 1; r < ranks_; ++r)
    ORTHANT_MPI(MPI_Isend(nullptr, 0, MPI_CHAR, r, tag_ask, comm_, &requests[static_cast<size_t>(r)]));
  for (const auto end = Clock::now() + patience; Clock::now() < end && states.size() < static_cast<size_t>(ranks_);) {
    int there = 0;
    MPI_Status status;
    ORTHANT_MPI(MPI_Iprobe(MPI_ANY_SOURCE, tag_state, comm_, &there, &status));
    if (!there) {
      std::this_thread::sleep_for(10ms);
      continue;
    }
    int size = 0;
    ORTHANT_MPI(MPI_Get_count(&status, MPI_CHAR, &size));
    std::string text(static_cast<size_t>(size), '\0');
    ORTHANT_MPI(MPI_Recv(text.data(), size, MPI_CHAR, status.MPI_SOURCE, tag_state, comm_, MPI_STATUS_IGNORE));
    states.push_back(unpacked(status.MPI_SOURCE, text));
  }
  return states;
}

void Watchdog::report() {
  double seconds = 0, limit = 0;
  {
    const std::lock_guard guard(lock_);
    seconds = armed_ ? std::chrono::duration<double>(Clock::now() - begin_ - lost_).count() : 0;
    limit = limit_now();
  }
  if (rank_ != 0 && comm_ != MPI_COMM_NULL) {
    const std::string mine = packed(state());
    MPI_Request request = MPI_REQUEST_NULL;
    ORTHANT_MPI(MPI_Isend(mine.data(), static_cast<int>(mine.size()), MPI_CHAR, 0, tag_state, comm_, &request));
    // Rank 0 speaks and ends the job. If it cannot, the lowest rank that can does.
    const auto end = Clock::now() + second_try + rank_ * 50ms;
    for (int sent = 0; Clock::now() < end;) {
      if (!sent) ORTHANT_MPI(MPI_Test(&request, &sent, MPI_STATUS_IGNORE));
      std::this_thread::sleep_for(20ms);
    }
    std::fprintf(stderr,
                 "orthant: rank %d: hang: step %lld takes longer than %.1f s (limit %.1f s, guard.watchdog_s); no "
                 "word from rank 0, and this rank is %s\n",
                 rank_, static_cast<long long>(step_), seconds, limit, state().at.c_str());
    return;
  }
  const std::string text = hang_report(std::max(seconds, limit), limit, ranks_, collect(),
                                       [this](int r) { return names_.at(static_cast<size_t>(r)); });
  std::fprintf(stderr, "orthant: %s\n", text.c_str());
  std::fflush(stderr);
  if (!on_hang_) return;
  // On a thread of its own: the file system may be what hangs, and the job ends in any case.
  const auto noted = std::make_shared<std::promise<void>>();
  helper_thread("note of a hang", [this, noted, reason = text.substr(0, text.find("\n  waiting"))] {
    try {
      on_hang_(reason);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "orthant: the hang could not be noted in the run folder: %s\n", e.what());
    }
    noted->set_value();
  }).detach();
  noted->get_future().wait_for(patience);
}

}  // namespace orthant
