// HDF5 behind checked calls: handles that always close, errors that carry HDF5's own message, tensors as
// hyperslabs of datasets of global shape.
//
// Two drivers. A file is created and read with the POSIX driver (one process, or many that only read), and
// filled by many ranks with the MPI-IO driver in *independent* calls: collective writes hang on a full disk
// (HDF5 1.10 with Open MPI 4.1).
//
// The parallel library is not thread-safe. As long as a thread has a File open, another thread of the process that opens
// one gets a LogicError instead of a crash at random: saves have a thread of their own, and whoever else wants HDF5 waits
// for it first.
#pragma once

#include <hdf5.h>
#include <mpi.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "orthant/param.hpp"

namespace orthant::h5 {

/// Largest transfer of one HDF5 call. Independent calls of 2 GiB and more fail in HDF5 1.10 and were silently wrong
/// in some MPI libraries.
inline constexpr int64_t call_limit = int64_t{1} << 30;

/// An HDF5 identifier that is closed when it leaves its scope, also when an exception passes.
class Handle {
 public:
  using Closer = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  Handle(Handle&& other) noexcept : id_(other.id_), closer_(other.closer_) { other.id_ = -1; }
  Handle& operator=(Handle&& other) noexcept;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { close(); }
  hid_t id() const { return id_; }
  /// False if HDF5 refused; the identifier is given up either way.
  bool close();

 private:
  hid_t id_ = -1;
  Closer closer_ = nullptr;
};

/// Hints to MPI-IO, as in checkpoint.mpi_info. Which keys mean something is the MPI library's business.
using Hints = std::map<std::string, std::string>;
/// UsageError that names the key if MPI could not take a hint: empty, too long, or a striping_unit that is no number.
void check_hints(const Hints& hints);
/// Bytes on whose multiples large objects start: the hint striping_unit, or 1 MiB.
int64_t alignment_of(const Hints& hints);
/// Objects of at least this many bytes are aligned: a quarter of the file is the most that padding may take.
inline int64_t aligned_from(int64_t alignment) { return 4 * alignment; }

/// What a dataset holds.
struct Shape {
  std::vector<int64_t> dims;  ///< empty for a scalar
  std::string type;           ///< "f32", "f64", "i64", "u8", "text", or "other"
  int64_t bytes = 0;
};

/// Where a rectangle of a virtual dataset lies: dense, row after row, in a 1-d dataset of the same name in another
/// file of the same folder.
struct Source {
  Piece piece;        ///< of the virtual dataset
  std::string file;   ///< plain name
  int64_t at = 0;     ///< first element in the file's dataset
  int64_t total = 0;  ///< elements of the file's dataset
};

/// An open file. Every failure is a DataError that names the file, the object and HDF5's reason.
class File {
 public:
  /// A new file (POSIX driver); an existing one is an error. Large objects are aligned, see alignment_of. With hints,
  /// MPI-IO makes the empty file, as how a file is striped is settled when it is made.
  static File create(const std::string& path, const Hints& hints = {});
  /// For reading (POSIX driver), without file locks: a finished checkpoint never changes, and file systems without
  /// locks or mounted read-only are common.
  static File open_read(const std::string& path);
  /// For filling datasets of a file that exists, by this process alone (POSIX driver).
  static File open_write(const std::string& path);
  /// For filling datasets of a file that exists, by all ranks of `comm` (MPI-IO driver). Collective, and so is
  /// close().
  static File open_shared(const std::string& path, MPI_Comm comm, const Hints& hints = {});

  const std::string& path() const { return path_; }
  /// Of a shared file: the hints that MPI-IO says it works with.
  Hints effective_hints() const;
  /// Flushes and closes, checked. The destructor closes as well, but can only ignore an error.
  void close();

  void create_group(const std::string& name);
  /// A dataset of fp32, contiguous, allocated now and never filled.
  void create_floats(const std::string& name, const std::vector<int64_t>& dims);
  /// A dataset of fp32 without data of its own: `sources` say where each rectangle lies. What none covers, or whose
  /// file is missing, shows as NaN to other readers; read_floats refuses it.
  void create_virtual_floats(const std::string& name, const std::vector<int64_t>& dims,
                             const std::vector<Source>& sources);
  void write_text(const std::string& name, const std::string& value);
  void write_bytes(const std::string& name, const std::string& value);
  void write_integer(const std::string& name, int64_t value);
  void write_real(const std::string& name, double value);

  bool exists(const std::string& name) const;                         ///< every part of the path is looked at
  std::vector<std::string> children(const std::string& group) const;  ///< names, sorted; a missing group has none
  Shape shape(const std::string& name) const;
  std::string read_text(const std::string& name) const;
  std::string read_bytes(const std::string& name) const;
  int64_t read_integer(const std::string& name) const;
  double read_real(const std::string& name) const;

  /// Of a virtual dataset, sorted by column and row; none for one that holds its data itself. `total` is then the
  /// least that the file must have.
  std::vector<Source> sources(const std::string& name) const;

  /// One piece of a 1-d or 2-d dataset from or into dense memory [piece.rows, piece.cols], in calls of at most
  /// `limit` bytes. A virtual dataset is read from its source files, and a missing one is an error that names it.
  void write_floats(const std::string& name, const Piece& piece, const float* data, int64_t limit = call_limit);
  void read_floats(const std::string& name, const Piece& piece, float* data, int64_t limit = call_limit) const;

 private:
  explicit File(std::string path);
  static File open_alone(const std::string& path, unsigned flags);
  void transfer(const std::string& name, const Piece& piece, float* data, int64_t limit, bool write) const;
  void read_source(const Source& source, const std::string& name, const Piece& piece, float* data,
                   int64_t limit) const;
  const File& source_file(const std::string& name) const;
  std::string folder() const;
  Handle dataset(const std::string& name) const;
  Handle space_of(const std::vector<int64_t>& dims, const std::string& name) const;
  Handle creation_list(const std::string& name) const;
  void write_scalar(const std::string& name, hid_t file_type, hid_t memory_type, const void* value);
  void read_scalar(const std::string& name, hid_t memory_type, const char* wanted, void* value) const;
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail_with_errno(const std::string& what) const;
  hid_t checked(hid_t result, const std::string& what) const;

  std::shared_ptr<void> turn_;  // of this thread to use the library; before file_, as it has to outlive it
  Handle file_;
  std::string path_;
  // Source files of virtual datasets stay open: neighbouring tensors lie in the same ones. Bounded, as a process may
  // have few open files.
  mutable std::map<std::string, std::unique_ptr<File>> sources_;
};

}  // namespace orthant::h5
