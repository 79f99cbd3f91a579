// See agree.hpp.
#include "support/agree.hpp"

#include <new>
#include <optional>

#include "orthant/error.hpp"

namespace orthant {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw FaultError(std::string("MPI failed: ") + text + " in " + call);
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
