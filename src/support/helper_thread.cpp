// See helper_thread.hpp.
#include "support/helper_thread.hpp"

#include <mpi.h>

#include <csignal>
#include <string>
#include <system_error>

#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

bool threads_may_communicate() {
  int level = MPI_THREAD_SINGLE;
  ORTHANT_MPI(MPI_Query_thread(&level));
  return level >= MPI_THREAD_MULTIPLE;
}

std::thread helper_thread(const char* purpose, std::function<void()> work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // a thread begins with the mask of its maker
  try {
    std::thread thread(std::move(work));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::system_error& e) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw FaultError(std::string("no thread for the ") + purpose + ": " + e.what());
  }
}

}  // namespace orthant
