// HDF5 files: opening, closing, hints to MPI-IO, and the objects that are not tensors.
#include "checkpoint/hdf5.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>

#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant::h5 {

namespace {

// A file that could not be closed (no room for its last bytes) stays half alive inside the library, and the clean-up that
// the library has MPI_Finalize run then follows freed memory. Attributes of MPI_COMM_SELF are deleted last set first, so
// this one is reached before the library's and tells it that there is nothing to clean up: training that outlived a full
// disk ends with its own exit code.
void skip_library_cleanup() {
  static bool skipped = false;
  if (skipped) return;
  skipped = true;
  const auto skip = [](MPI_Comm, int, void*, void*) -> int {
    if (void* initialised = dlsym(RTLD_DEFAULT, "H5_libinit_g")) *static_cast<hbool_t*>(initialised) = false;
    return MPI_SUCCESS;
  };
  int key = MPI_KEYVAL_INVALID;
  ORTHANT_MPI(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, skip, &key, nullptr));
  ORTHANT_MPI(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr));
}

}  // namespace

bool Handle::close() {
  if (id_ < 0) return true;
  const hid_t id = id_;
  id_ = -1;
  if (closer_(id) >= 0) return true;
  if (closer_ == H5Fclose) skip_library_cleanup();
  return false;
}

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    close();
    id_ = other.id_;
    closer_ = other.closer_;
    other.id_ = -1;
  }
  return *this;
}

namespace {

// Errors are reported once, by us; the library would print its stack on every rank.
void quiet() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

// The innermost record says what really happened (for system calls: errno and its text).
std::string reason() {
  struct Found {
    std::string text;
  } found;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* record, void* out) -> herr_t {
        auto& text = static_cast<Found*>(out)->text;
        if (text.empty() && record->desc && *record->desc) text = record->desc;
        return 0;
      },
      &found);
  H5Eclear2(H5E_DEFAULT);
  std::erase(found.text, '\n');  // the library puts the time in, with its line end
  return found.text.empty() ? "HDF5 gives no reason" : "HDF5: " + found.text;
}

// MPI-IO tells HDF5 no more than that a call failed. To be used where errno was cleared before the call.
std::string reason_with_errno() {
  const int error = errno;
  std::string text = reason();
  const char* said = std::strerror(error);
  if (error != 0 && text.find(said) == std::string::npos) text += std::string(" (") + said + ")";
  return text;
}

hid_t checked_at(hid_t result, const std::string& path, const std::string& what) {
  if (result < 0) throw DataError(path + ": " + what + ": " + reason());
  return result;
}

Handle access_list(const std::string& path, const Hints& hints = {}) {
  Handle list(checked_at(H5Pcreate(H5P_FILE_ACCESS), path, "cannot prepare the access"), H5Pclose);
  // The 1.8 format: readable by every tool still in use, and without the flag "open for writing" that keeps a file
  // of a killed writer from being opened again.
  checked_at(H5Pset_libver_bounds(list.id(), H5F_LIBVER_V18, H5F_LIBVER_LATEST), path,
             "cannot set the format version");
  const int64_t alignment = alignment_of(hints);
  checked_at(H5Pset_alignment(list.id(), static_cast<hsize_t>(aligned_from(alignment)), static_cast<hsize_t>(alignment)),
             path, "cannot set the alignment");
  checked_at(H5Pset_fclose_degree(list.id(), H5F_CLOSE_STRONG), path, "cannot set how the file closes");
  return list;
}

/// The hints as MPI wants them.
class Info {
 public:
  explicit Info(const Hints& hints) {
    ORTHANT_MPI(MPI_Info_create(&info_));
    // Data sieving reads, changes and writes back whole stretches under a file lock: slow, and impossible on file
    // systems without locks.
    Hints all = {{"romio_ds_write", "disable"}, {"romio_ds_read", "disable"}};
    for (const auto& [key, value] : hints) all[key] = value;
    for (const auto& [key, value] : all) ORTHANT_MPI(MPI_Info_set(info_, key.c_str(), value.c_str()));
  }
  Info(const Info&) = delete;
  Info& operator=(const Info&) = delete;
  ~Info() { MPI_Info_free(&info_); }
  MPI_Info get() const { return info_; }

 private:
  MPI_Info info_ = MPI_INFO_NULL;
};

void make_with_hints(const std::string& path, const Hints& hints) {
  const Info info(hints);
  MPI_File file = MPI_FILE_NULL;
  int code = MPI_File_open(MPI_COMM_SELF, path.c_str(), MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY, info.get(),
                           &file);
  if (code == MPI_SUCCESS) code = MPI_File_close(&file);
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int size = 0;
  MPI_Error_string(code, text, &size);
  throw DataError(path + ": MPI-IO cannot create the file with the hints of checkpoint.mpi_info: " + text);
}

}  // namespace

void check_hints(const Hints& hints) {
  for (const auto& [key, value] : hints) {
    const std::string what = "checkpoint.mpi_info: " + (key.empty() ? "an entry" : key) + " = \"" + value + "\": ";
    if (key.empty() || key.size() >= MPI_MAX_INFO_KEY) {
      throw UsageError(what + "a key has 1 to " + std::to_string(MPI_MAX_INFO_KEY - 1) + " characters");
    }
    if (value.empty() || value.size() >= MPI_MAX_INFO_VAL) {
      throw UsageError(what + "a value has 1 to " + std::to_string(MPI_MAX_INFO_VAL - 1) + " characters");
    }
    if (key != "striping_unit") continue;
    const bool digits = value.find_first_not_of("0123456789") == std::string::npos && value.size() <= 10;
    if (!digits || std::stoll(value) < 4096 || std::stoll(value) > call_limit) {
      throw UsageError(what + "a number of bytes from 4096 to " + std::to_string(call_limit) + " is wanted");
    }
  }
}

int64_t alignment_of(const Hints& hints) {
  const auto unit = hints.find("striping_unit");
  return unit == hints.end() ? int64_t{1} << 20 : std::stoll(unit->second);
}

namespace {

// Who has files open. A count, as one reader opens several.
std::mutex turn_lock;
std::thread::id turn_owner;
int64_t turn_files = 0;

std::shared_ptr<void> take_turn(const std::string& path) {
  const std::lock_guard guard(turn_lock);
  ORTHANT_ENSURE(turn_files == 0 || turn_owner == std::this_thread::get_id(),
                 path + ": HDF5 is in use by another thread, and the library is not thread-safe");
  turn_owner = std::this_thread::get_id();
  ++turn_files;
  return std::shared_ptr<void>(nullptr, [](void*) {
    const std::lock_guard release(turn_lock);
    --turn_files;
  });
}

}  // namespace

File::File(std::string path) : turn_(take_turn(path)), path_(std::move(path)) { quiet(); }

Hints File::effective_hints() const {
  void* handle = nullptr;
  checked(H5Fget_vfd_handle(file_.id(), H5P_DEFAULT, &handle), "cannot ask for the hints in effect");
  MPI_Info info = MPI_INFO_NULL;
  ORTHANT_MPI(MPI_File_get_info(*static_cast<MPI_File*>(handle), &info));
  int keys = 0;
  ORTHANT_MPI(MPI_Info_get_nkeys(info, &keys));
  Hints found;
  for (int i = 0; i < keys; ++i) {
    char key[MPI_MAX_INFO_KEY + 1] = "", value[MPI_MAX_INFO_VAL + 1] = "";
    int there = 0;
    ORTHANT_MPI(MPI_Info_get_nthkey(info, i, key));
    ORTHANT_MPI(MPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &there));
    if (there) found[key] = value;
  }
  MPI_Info_free(&info);
  return found;
}

void File::fail_with_errno(const std::string& what) const {
  throw DataError(path_ + ": " + what + ": " + reason_with_errno());
}

void File::fail(const std::string& what) const { throw DataError(path_ + ": " + what + ": " + reason()); }

hid_t File::checked(hid_t result, const std::string& what) const {
  if (result < 0) fail(what);
  return result;
}

File File::create(const std::string& path, const Hints& hints) {
  File file(path);
  Handle access = access_list(path, hints);
  if (!hints.empty()) make_with_hints(path, hints);
#if H5_VERSION_GE(1, 10, 7)
  // Nobody else knows of a file that is being made, and file systems without locks are common.
  checked_at(H5Pset_file_locking(access.id(), false, true), path, "cannot switch file locks off");
#endif
  Handle layout(checked_at(H5Pcreate(H5P_FILE_CREATE), path, "cannot prepare the file"), H5Pclose);
  checked_at(H5Pset_obj_track_times(layout.id(), false), path, "cannot prepare the file");  // as of groups, below
  const unsigned flags = hints.empty() ? H5F_ACC_EXCL : H5F_ACC_TRUNC;
  file.file_ = Handle(
      checked_at(H5Fcreate(path.c_str(), flags, layout.id(), access.id()), path, "cannot create the file"), H5Fclose);
  return file;
}

File File::open_alone(const std::string& path, unsigned flags) {
  File file(path);
  Handle access = access_list(path);
#if H5_VERSION_GE(1, 10, 7)
  checked_at(H5Pset_file_locking(access.id(), false, true), path, "cannot switch file locks off");
#endif
  file.file_ = Handle(checked_at(H5Fopen(path.c_str(), flags, access.id()), path, "cannot open the file"), H5Fclose);
  return file;
}

File File::open_read(const std::string& path) { return open_alone(path, H5F_ACC_RDONLY); }
File File::open_write(const std::string& path) { return open_alone(path, H5F_ACC_RDWR); }

File File::open_shared(const std::string& path, MPI_Comm comm, const Hints& hints) {
  File file(path);
  Handle access = access_list(path, hints);
  const Info info(hints);
  checked_at(H5Pset_fapl_mpio(access.id(), comm, info.get()), path, "cannot choose the MPI-IO driver");
  file.file_ = Handle(
      checked_at(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.id()), path, "cannot open the file on all ranks"), H5Fclose);
  return file;
}

void File::close() {
  sources_.clear();
  if (file_.id() < 0) return;
  // Flushed first: a failed write shows here, while H5Fclose may hide it.
  errno = 0;
  const bool flushed = H5Fflush(file_.id(), H5F_SCOPE_LOCAL) >= 0;
  const std::string why = flushed ? "" : reason_with_errno();
  const bool closed = file_.close();
  if (!flushed) throw DataError(path_ + ": cannot flush the file: " + why);
  if (!closed) fail("cannot close the file");
}

// Times are not kept, of groups as of datasets: the same state gives the same bytes. Groups on the way are made one by
// one, as HDF5 would give those that it makes by itself a time.
void File::create_group(const std::string& name) {
  Handle list(checked(H5Pcreate(H5P_GROUP_CREATE), "cannot prepare group " + name), H5Pclose);
  checked(H5Pset_obj_track_times(list.id(), false), "cannot prepare group " + name);
  for (size_t end = 0; end != std::string::npos;) {
    end = name.find('/', end + 1);
    const std::string part = name.substr(0, end);
    const htri_t there = H5Lexists(file_.id(), part.c_str(), H5P_DEFAULT);
    checked(there, "cannot look for group " + part);
    if (there > 0) continue;
    Handle group(checked(H5Gcreate2(file_.id(), part.c_str(), H5P_DEFAULT, list.id(), H5P_DEFAULT), "cannot create group " + part), H5Gclose);
  }
}

Handle File::creation_list(const std::string& name) const {
  Handle list(checked(H5Pcreate(H5P_DATASET_CREATE), "cannot prepare " + name), H5Pclose);
  checked(H5Pset_obj_track_times(list.id(), false), "cannot prepare " + name);
  return list;
}

static hid_t checked_list(hid_t id) {
  if (id < 0) throw DataError("cannot prepare a dataset: " + reason());
  return id;
}

void File::write_scalar(const std::string& name, hid_t file_type, hid_t memory_type, const void* value) {
  Handle space(checked(H5Screate(H5S_SCALAR), "cannot shape " + name), H5Sclose);
  Handle list = creation_list(name);
  Handle data(
      checked(H5Dcreate2(file_.id(), name.c_str(), file_type, space.id(), H5P_DEFAULT, list.id(), H5P_DEFAULT),
              "cannot create " + name),
      H5Dclose);
  checked(H5Dwrite(data.id(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, value), "cannot write " + name);
}

static Handle text_type(size_t size) {
  Handle type(checked_list(H5Tcopy(H5T_C_S1)), H5Tclose);
  checked_list(H5Tset_size(type.id(), std::max<size_t>(size, 1)));  // HDF5 has no text of length 0
  checked_list(H5Tset_strpad(type.id(), H5T_STR_NULLPAD));
  checked_list(H5Tset_cset(type.id(), H5T_CSET_UTF8));
  return type;
}

void File::write_text(const std::string& name, const std::string& value) {
  Handle type = text_type(value.size());
  write_scalar(name, type.id(), type.id(), value.c_str());
}

void File::write_bytes(const std::string& name, const std::string& value) {
  const hsize_t size = value.size();
  Handle space(checked(size ? H5Screate_simple(1, &size, nullptr) : H5Screate(H5S_NULL), "cannot shape " + name),
               H5Sclose);
  Handle list = creation_list(name);
  Handle data(
      checked(H5Dcreate2(file_.id(), name.c_str(), H5T_STD_U8LE, space.id(), H5P_DEFAULT, list.id(), H5P_DEFAULT),
              "cannot create " + name),
      H5Dclose);
  if (size) {
    checked(H5Dwrite(data.id(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, value.data()),
            "cannot write " + name);
  }
}

void File::write_integer(const std::string& name, int64_t value) {
  write_scalar(name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

void File::write_real(const std::string& name, double value) {
  write_scalar(name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

bool File::exists(const std::string& name) const {
  // H5Lexists fails on a path whose parents are missing, so it is asked part by part.
  for (size_t end = name.find('/', 1);; end = name.find('/', end + 1)) {
    const std::string part = name.substr(0, end);
    const htri_t there = H5Lexists(file_.id(), part.c_str(), H5P_DEFAULT);
    checked(there, "cannot look for " + part);
    if (there == 0) return false;
    if (end == std::string::npos) return true;
  }
}

std::vector<std::string> File::children(const std::string& group) const {
  std::vector<std::string> names;
  if (group != "/" && !exists(group)) return names;
  Handle at(checked(H5Gopen2(file_.id(), group.c_str(), H5P_DEFAULT), "cannot open group " + group), H5Gclose);
  const herr_t done = H5Literate(
      at.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr,
      [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
        static_cast<std::vector<std::string>*>(out)->emplace_back(name);
        return 0;
      },
      &names);
  checked(done, "cannot list group " + group);
  return names;
}

Handle File::dataset(const std::string& name) const {
  return Handle(checked(H5Dopen2(file_.id(), name.c_str(), H5P_DEFAULT), "cannot open dataset " + name), H5Dclose);
}

static std::string type_name(hid_t type) {
  const size_t size = H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      return size == 4 ? "f32" : size == 8 ? "f64" : "other";
    case H5T_INTEGER:
      if (size == 8) return "i64";
      return size == 1 ? "u8" : "other";
    case H5T_STRING:
      return H5Tis_variable_str(type) > 0 ? "other" : "text";
    default:
      return "other";
  }
}

Shape File::shape(const std::string& name) const {
  Handle data = dataset(name);
  Handle type(checked(H5Dget_type(data.id()), "cannot read the type of " + name), H5Tclose);
  Handle space(checked(H5Dget_space(data.id()), "cannot read the shape of " + name), H5Sclose);
  Shape found;
  found.type = type_name(type.id());
  std::vector<hsize_t> extent(static_cast<size_t>(std::max(0, H5Sget_simple_extent_ndims(space.id()))));
  if (!extent.empty()) {
    checked(H5Sget_simple_extent_dims(space.id(), extent.data(), nullptr), "cannot read the shape of " + name);
  }
  found.dims.assign(extent.begin(), extent.end());
  found.bytes =
      static_cast<int64_t>(H5Sget_simple_extent_npoints(space.id())) * static_cast<int64_t>(H5Tget_size(type.id()));
  return found;
}

void File::read_scalar(const std::string& name, hid_t memory_type, const char* wanted, void* value) const {
  const Shape found = shape(name);
  if (found.type != wanted || !found.dims.empty()) {
    throw DataError(path_ + ": " + name + " is " + found.type + (found.dims.empty() ? "" : " with dims") +
                    "; a single " + wanted + " is wanted");
  }
  checked(H5Dread(dataset(name).id(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, value), "cannot read " + name);
}

std::string File::read_text(const std::string& name) const {
  const Shape found = shape(name);
  std::string value(static_cast<size_t>(std::max<int64_t>(found.bytes, 1)), '\0');
  Handle type = text_type(value.size());
  read_scalar(name, type.id(), "text", value.data());
  while (!value.empty() && value.back() == '\0') value.pop_back();
  return value;
}

std::string File::read_bytes(const std::string& name) const {
  const Shape found = shape(name);
  if (found.type != "u8") throw DataError(path_ + ": " + name + " is " + found.type + "; bytes (u8) are wanted");
  std::string value(static_cast<size_t>(found.bytes), '\0');
  if (!value.empty()) {
    checked(H5Dread(dataset(name).id(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, value.data()),
            "cannot read " + name);
  }
  return value;
}

int64_t File::read_integer(const std::string& name) const {
  int64_t value = 0;
  read_scalar(name, H5T_NATIVE_INT64, "i64", &value);
  return value;
}

double File::read_real(const std::string& name) const {
  double value = 0;
  read_scalar(name, H5T_NATIVE_DOUBLE, "f64", &value);
  return value;
}

}  // namespace orthant::h5
