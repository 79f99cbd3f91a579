// Makes the failure of one rank the failure of all, with one message.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>

namespace orthant {

/// Throws FaultError naming the call when an MPI function did not return MPI_SUCCESS.
void check_mpi(int code, const char* call);
#define ORTHANT_MPI(call) ::orthant::check_mpi((call), #call)

/// Runs `work` on every rank of `comm` and waits for all. When it threw on any rank, every rank throws the error of
/// the lowest such rank (code and text), marked as agreed. `work` itself must not communicate on `comm` in a way that
/// a failing rank would leave unfinished.
/// `who` (rank, mesh coordinates, host) closes the message where it matters which rank it was.
void collectively(MPI_Comm comm, const std::function<void()>& work, const std::string& who = "");

/// While one lives on a thread, `collectively` and `wait_for_all` sleep until the last rank has come, instead of spinning
/// as MPI does: for work behind the training, which needs the core.
class PatientThread {
 public:
  PatientThread();
  ~PatientThread();
  PatientThread(const PatientThread&) = delete;
  PatientThread& operator=(const PatientThread&) = delete;
};

/// In front of a collective call that ranks reach at different times. Does nothing on a thread that is not patient.
void wait_for_all(MPI_Comm comm);

}  // namespace orthant
