// Cutting a communicator into the groups that share a data file.
#include "checkpoint/file_groups.hpp"

#include <fmt/format.h>

#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

FileGroups::FileGroups(MPI_Comm comm, int64_t files) {
  ORTHANT_ENSURE(files >= -1, "checkpoint.files is -1 or more");
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  try {
    if (files == 0) {
      ORTHANT_MPI(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &group_));
    } else {
      const int color = files < 0 || files >= ranks ? 0 : rank / static_cast<int>(files);
      ORTHANT_MPI(MPI_Comm_split(comm, color, rank, &group_));
    }
    int place = 0;
    ORTHANT_MPI(MPI_Comm_rank(group_, &place));
    ORTHANT_MPI(MPI_Comm_split(comm, place == 0 ? 0 : MPI_UNDEFINED, rank, &leads_));
    int numbers[2] = {0, 1};
    if (lead()) {
      ORTHANT_MPI(MPI_Comm_rank(leads_, &numbers[0]));
      ORTHANT_MPI(MPI_Comm_size(leads_, &numbers[1]));
    }
    ORTHANT_MPI(MPI_Bcast(numbers, 2, MPI_INT, 0, group_));
    index_ = numbers[0];
    count_ = numbers[1];
  } catch (...) {
    release();
    throw;
  }
}

FileGroups::~FileGroups() { release(); }

void FileGroups::release() {
  if (leads_ != MPI_COMM_NULL) MPI_Comm_free(&leads_);
  if (group_ != MPI_COMM_NULL) MPI_Comm_free(&group_);
}

std::string data_file_name(int group) { return fmt::format("data-{:05d}.h5", group); }

}  // namespace orthant
