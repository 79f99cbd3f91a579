// The folder of checkpoints: names, durable small files, which checkpoint is the newest, which may go.
//
// Nothing here is collective; rank 0 alone calls what writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/manifest.hpp"

namespace orthant {

/// An open file descriptor. DataError with path and reason if it cannot be opened.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, int mode = 0666);
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// Waits until the content of a file, or the names in a folder, are on disk.
void sync_path(const std::string& path);
/// A new small file with this content, on disk when it returns.
void write_file_durably(const std::string& path, const std::string& content);
/// Makes the folder and its parents; DataError if that is not possible.
void make_folder(const std::string& path);
/// Removes a folder and everything in it; DataError if something stays.
void remove_folder(const std::string& path);

/// DataError if `folder` cannot take `bytes` more: by the free space that its file system tells, then by taking the
/// blocks for a moment, which also finds quotas. File systems that cannot reserve blocks take `written` bytes of
/// zeros instead. To be called before HDF5 opens a file: HDF5 1.10 does not survive a close that finds the disk full.
/// `probe` names the file that takes them; several ranks at once give different ones.
void require_space(const std::string& folder, int64_t bytes, int64_t written, const std::string& probe = ".room");
/// Takes the blocks of a file of its full size now, so that a full disk shows here, in one process, and not in the
/// middle of the writes of many. False if the file system cannot do it.
bool reserve_blocks(const std::string& path, int64_t bytes);

/// step-00000100
std::string step_folder_name(int64_t step);

/// A folder named step-…; `problem` says why it is no good checkpoint by manifest and sizes.
struct StepFolder {
  std::string path;
  int64_t step = 0;
  Manifest manifest;  ///< as far as it could be read
  std::string problem;
};
/// All of them: those with a valid manifest last saved first, and each bad one before the first of a lower step.
std::vector<StepFolder> list_step_folders(const std::string& checkpoints_folder);

/// Removes what earlier, broken-off saves and removals left (.writing-…, .removing-…).
void remove_leftovers(const std::string& checkpoints_folder);
/// Gives the finished temporary folder its final name; an older checkpoint of that name is replaced in one move.
void publish_folder(const std::string& temporary, const std::string& final_path);
/// Atomically writes <checkpoints>/latest.
void point_latest(const std::string& checkpoints_folder, const std::string& name);
/// Removes complete checkpoints but the newest `keep` and `saved`. Bad ones are left for people to look at.
void remove_older(const std::string& checkpoints_folder, const std::string& saved, int keep);

}  // namespace orthant
