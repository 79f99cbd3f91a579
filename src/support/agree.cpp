// See agree.hpp.
#include "support/agree.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <thread>

#include "orthant/error.hpp"

namespace orthant {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw FaultError(std::string("MPI failed: ") + text + " in " + call);
}

static thread_local bool patient = false;

PatientThread::PatientThread() { patient = true; }
PatientThread::~PatientThread() { patient = false; }

void wait_for_all(MPI_Comm comm) {
  if (!patient) return;
  MPI_Request request = MPI_REQUEST_NULL;
  ORTHANT_MPI(MPI_Ibarrier(comm, &request));
  std::chrono::microseconds pause(20);
  for (int done = 0;;) {
    ORTHANT_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done) return;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(2000));
  }
}

void collectively(MPI_Comm comm, const std::function<void()>& work, const std::string& who) {
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  std::optional<Error> mine;
  try {
    work();
  } catch (const Error& e) {
    mine = e;
  } catch (const std::bad_alloc&) {
    mine = FaultError("out of memory");
  } catch (const std::exception& e) {
    mine = FaultError(e.what());
  }
  wait_for_all(comm);
  int first = mine ? rank : ranks;
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, comm));
  if (first == ranks) return;
  std::string text = mine ? mine->what() : "";
  if (mine && !who.empty()) text += " [" + who + "]";
  int header[2] = {mine ? static_cast<int>(mine->code()) : 0, static_cast<int>(text.size())};
  ORTHANT_MPI(MPI_Bcast(header, 2, MPI_INT, first, comm));
  text.resize(static_cast<size_t>(header[1]));
  ORTHANT_MPI(MPI_Bcast(text.data(), header[1], MPI_CHAR, first, comm));
  throw Error(static_cast<Exit>(header[0]), text, true);
}

}  // namespace orthant
