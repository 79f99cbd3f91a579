// Which ranks write a data file together (deck key checkpoint.files).
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>

namespace orthant {

/// The ranks of `comm` cut into groups, each with a lead: its lowest rank. Groups are numbered by their leads, so
/// rank 0 leads group 0. Making one is collective over `comm`.
class FileGroups {
 public:
  /// `files`: 0 = the ranks of a node, n > 0 = ranks [i n, (i + 1) n), -1 = all.
  FileGroups(MPI_Comm comm, int64_t files);
  FileGroups(const FileGroups&) = delete;
  FileGroups& operator=(const FileGroups&) = delete;
  ~FileGroups();

  MPI_Comm group() const { return group_; }  ///< the own group; its rank 0 is the lead
  MPI_Comm leads() const { return leads_; }  ///< the leads in the order of their groups; MPI_COMM_NULL on other ranks
  bool lead() const { return leads_ != MPI_COMM_NULL; }
  int index() const { return index_; }  ///< of the own group
  int count() const { return count_; }
  /// More than one group: the tensors lie in data files, and state.h5 says where.
  bool spread() const { return count_ > 1; }

 private:
  void release();
  MPI_Comm group_ = MPI_COMM_NULL, leads_ = MPI_COMM_NULL;
  int index_ = 0, count_ = 1;
};

/// data-00003.h5
std::string data_file_name(int group);

}  // namespace orthant
