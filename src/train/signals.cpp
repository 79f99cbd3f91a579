// See signals.hpp.
#include "train/signals.hpp"

#include <atomic>
#include <csignal>

namespace orthant {

namespace {

std::atomic<int> seen{0};

void on_signal(int number) {
  seen = number;
  // the user's second wish is meant: no more waiting for a save
  if (number == SIGTERM || number == SIGINT) std::signal(number, SIG_DFL);
}

}  // namespace

void watch_signals() {
  seen = 0;
  for (int number : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT}) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(number, &action, nullptr);
  }
  // a file size limit is then a failed write like any other, not the end of the process
  std::signal(SIGXFSZ, SIG_IGN);
}

int signal_seen() { return seen; }

}  // namespace orthant
