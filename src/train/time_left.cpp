// See time_left.hpp.
#include "train/time_left.hpp"

#include <chrono>
#include <cstdlib>

#include "deck/keys_run.hpp"

namespace orthant {

namespace {
double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }
}  // namespace

TimeLeft::TimeLeft(const Deck& deck, bool lead) {
  if (!lead) return;
  if (deck.has(keys::run::time_limit)) end_ = now() + deck[keys::run::time_limit];
  else if (const char* end = std::getenv("SLURM_JOB_END_TIME")) end_ = std::atof(end);
}

bool TimeLeft::over(double step_seconds, double save_seconds) const {
  return end_ > 0 && end_ - now() < 1.5 * save_seconds + 2 * step_seconds;
}

}  // namespace orthant
