// HDF5 files: tensors, whole or spread over other files by a virtual dataset.
//
// The library can read virtual datasets itself, but shows what a missing file should hold as NaN and says nothing.
// So the mapping is read and the source files are opened here.
#include <algorithm>
#include <cerrno>
#include <limits>
#include <tuple>

#include "checkpoint/hdf5.hpp"
#include "orthant/error.hpp"

namespace orthant::h5 {

/// Source files kept open at once by one reader.
static constexpr size_t open_sources = 64;

Handle File::space_of(const std::vector<int64_t>& dims, const std::string& name) const {
  const std::vector<hsize_t> extent(dims.begin(), dims.end());
  return Handle(checked(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr),
                        "cannot shape dataset " + name),
                H5Sclose);
}

void File::create_floats(const std::string& name, const std::vector<int64_t>& dims) {
  Handle space = space_of(dims, name);
  Handle list = creation_list(name);
  checked(H5Pset_layout(list.id(), H5D_CONTIGUOUS), "cannot lay out dataset " + name);
  checked(H5Pset_alloc_time(list.id(), H5D_ALLOC_TIME_EARLY), "cannot lay out dataset " + name);
  checked(H5Pset_fill_time(list.id(), H5D_FILL_TIME_NEVER), "cannot lay out dataset " + name);
  Handle data(
      checked(H5Dcreate2(file_.id(), name.c_str(), H5T_IEEE_F32LE, space.id(), H5P_DEFAULT, list.id(), H5P_DEFAULT),
              "cannot create dataset " + name),
      H5Dclose);
}

void File::create_virtual_floats(const std::string& name, const std::vector<int64_t>& dims,
                                 const std::vector<Source>& sources) {
  ORTHANT_ENSURE(!sources.empty(), "virtual dataset " + name + " has no sources");
  Handle space = space_of(dims, name);
  Handle list = creation_list(name);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  checked(H5Pset_fill_value(list.id(), H5T_NATIVE_FLOAT, &nan), "cannot set the fill value of " + name);
  for (const Source& s : sources) {
    Handle flat = space_of({s.total}, name);
    const hsize_t at = static_cast<hsize_t>(s.at), elements = static_cast<hsize_t>(s.piece.elements());
    checked(H5Sselect_hyperslab(flat.id(), H5S_SELECT_SET, &at, nullptr, &elements, nullptr),
            "cannot select the source of " + name);
    const hsize_t start[2] = {static_cast<hsize_t>(s.piece.row), static_cast<hsize_t>(s.piece.col)};
    const hsize_t count[2] = {static_cast<hsize_t>(s.piece.rows), static_cast<hsize_t>(s.piece.cols)};
    checked(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start, nullptr, count, nullptr),
            "cannot select a piece of " + name);
    checked(H5Pset_virtual(list.id(), space.id(), s.file.c_str(), name.c_str(), flat.id()),
            "cannot map a piece of " + name);
  }
  checked(H5Sselect_all(space.id()), "cannot shape dataset " + name);
  Handle data(
      checked(H5Dcreate2(file_.id(), name.c_str(), H5T_IEEE_F32LE, space.id(), H5P_DEFAULT, list.id(), H5P_DEFAULT),
              "cannot create virtual dataset " + name),
      H5Dclose);
}

// The bounds of a selection of one block, as first element and length in each of two dims.
static bool one_block(hid_t space, hsize_t start[2], hsize_t count[2]) {
  hsize_t end[2] = {0, 0};
  start[0] = start[1] = 0;
  count[0] = count[1] = 1;
  const int dims = H5Sget_simple_extent_ndims(space);
  if (dims < 1 || dims > 2 || H5Sget_select_bounds(space, start, end) < 0) return false;
  hsize_t area = 1;
  for (int d = 0; d < dims; ++d) area *= count[d] = end[d] - start[d] + 1;
  return H5Sget_select_npoints(space) == static_cast<hssize_t>(area);
}

std::vector<Source> File::sources(const std::string& name) const {
  std::vector<Source> found;
  Handle set = dataset(name);
  Handle list(checked(H5Dget_create_plist(set.id()), "cannot read the layout of " + name), H5Pclose);
  if (H5Pget_layout(list.id()) != H5D_VIRTUAL) return found;
  size_t mappings = 0;
  checked(H5Pget_virtual_count(list.id(), &mappings), "cannot read the sources of " + name);
  const auto text = [&](ssize_t (*get)(hid_t, size_t, char*, size_t), size_t i) {
    const ssize_t size = get(list.id(), i, nullptr, 0);
    checked(size < 0 ? -1 : 0, "cannot read the sources of " + name);
    std::string value(static_cast<size_t>(size) + 1, '\0');
    checked(get(list.id(), i, value.data(), value.size()) < 0 ? -1 : 0, "cannot read the sources of " + name);
    value.pop_back();
    return value;
  };
  for (size_t i = 0; i < mappings; ++i) {
    Handle here(checked(H5Pget_virtual_vspace(list.id(), i), "cannot read the sources of " + name), H5Sclose);
    Handle there(checked(H5Pget_virtual_srcspace(list.id(), i), "cannot read the sources of " + name), H5Sclose);
    hsize_t start[2], count[2], at[2], elements[2];
    const std::string file = text(H5Pget_virtual_filename, i);
    const bool understood = one_block(here.id(), start, count) && H5Sget_simple_extent_ndims(there.id()) == 1 &&
                            one_block(there.id(), at, elements) && elements[0] == count[0] * count[1] &&
                            text(H5Pget_virtual_dsetname, i) == name && !file.empty() &&
                            file.find('/') == std::string::npos;
    if (!understood) {
      throw DataError(path_ + ": source " + std::to_string(i) + " of virtual dataset " + name + " (in \"" + file +
                      "\") is not one that this program writes");
    }
    found.push_back({{static_cast<int64_t>(start[0]), static_cast<int64_t>(count[0]), static_cast<int64_t>(start[1]),
                      static_cast<int64_t>(count[1])},
                     file,
                     static_cast<int64_t>(at[0]),
                     static_cast<int64_t>(H5Sget_simple_extent_npoints(there.id()))});
  }
  std::sort(found.begin(), found.end(), [](const Source& a, const Source& b) {
    return std::tie(a.piece.col, a.piece.row) < std::tie(b.piece.col, b.piece.row);
  });
  return found;
}

void File::transfer(const std::string& name, const Piece& piece, float* data, int64_t limit, bool write) const {
  if (piece.elements() == 0) return;
  Handle set = dataset(name);
  Handle file_space(checked(H5Dget_space(set.id()), "cannot read the shape of " + name), H5Sclose);
  const int dims = H5Sget_simple_extent_ndims(file_space.id());
  hsize_t extent[2] = {0, 1};
  if (dims < 1 || dims > 2)
    throw DataError(path_ + ": " + name + " has " + std::to_string(dims) + " dims; 1 or 2 are wanted");
  checked(H5Sget_simple_extent_dims(file_space.id(), extent, nullptr), "cannot read the shape of " + name);
  ORTHANT_ENSURE(piece.row >= 0 && piece.col >= 0 && piece.row + piece.rows <= static_cast<int64_t>(extent[0]) &&
                     piece.col + piece.cols <= static_cast<int64_t>(extent[1]),
                 "piece outside dataset " + name);
  const int64_t limit_elements = std::max<int64_t>(1, limit / static_cast<int64_t>(sizeof(float)));
  const int64_t cols_a_call = std::min(piece.cols, limit_elements);
  const int64_t rows_a_call = std::max<int64_t>(1, limit_elements / piece.cols);
  for (int64_t row = 0; row < piece.rows; row += rows_a_call) {
    for (int64_t col = 0; col < piece.cols; col += cols_a_call) {
      const hsize_t count[2] = {static_cast<hsize_t>(std::min(rows_a_call, piece.rows - row)),
                                static_cast<hsize_t>(std::min(cols_a_call, piece.cols - col))};
      const hsize_t start[2] = {static_cast<hsize_t>(piece.row + row), static_cast<hsize_t>(piece.col + col)};
      checked(H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, start, nullptr, count, nullptr),
              "cannot select a piece of " + name);
      // A call takes whole rows unless a single row is past the limit, so its memory is always dense.
      const hsize_t elements = count[0] * count[1];
      Handle memory(checked(H5Screate_simple(1, &elements, nullptr), "cannot shape a piece of " + name), H5Sclose);
      float* at = data + row * piece.cols + col;
      if (write) {
        errno = 0;
        if (H5Dwrite(set.id(), H5T_NATIVE_FLOAT, memory.id(), file_space.id(), H5P_DEFAULT, at) < 0) {
          fail_with_errno("cannot write " + name);
        }
      } else {
        checked(H5Dread(set.id(), H5T_NATIVE_FLOAT, memory.id(), file_space.id(), H5P_DEFAULT, at),
                "cannot read " + name);
      }
    }
  }
}

std::string File::folder() const {
  const size_t slash = path_.rfind('/');
  return slash == std::string::npos ? "." : path_.substr(0, std::max<size_t>(slash, 1));
}

const File& File::source_file(const std::string& name) const {
  const auto open = sources_.find(name);
  if (open != sources_.end()) return *open->second;
  if (sources_.size() >= open_sources) sources_.clear();
  auto file = std::unique_ptr<File>(new File(open_read(folder() + "/" + name)));
  return *sources_.emplace(name, std::move(file)).first->second;
}

// Selects, in a 1-d space, rows of `cols` elements that start `pitch` apart.
static void select_rows(hid_t space, int64_t first, int64_t pitch, int64_t rows, int64_t cols) {
  const hsize_t start = static_cast<hsize_t>(first);
  // Rows that follow each other without a gap are one stretch, which the library moves in one go.
  const bool dense = rows == 1 || pitch == cols;
  const hsize_t stride = static_cast<hsize_t>(dense ? 1 : pitch), count = static_cast<hsize_t>(dense ? 1 : rows);
  const hsize_t block = static_cast<hsize_t>(dense ? rows * cols : cols);
  ORTHANT_ENSURE(H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, dense ? nullptr : &stride, &count, &block) >= 0,
                 "a selection of rows is refused");
}

void File::read_source(const Source& source, const std::string& name, const Piece& piece, float* data,
                       int64_t limit) const {
  const Piece& from = source.piece;
  Piece part;  // what both have
  part.row = std::max(from.row, piece.row);
  part.rows = std::min(from.row + from.rows, piece.row + piece.rows) - part.row;
  part.col = std::max(from.col, piece.col);
  part.cols = std::min(from.col + from.cols, piece.col + piece.cols) - part.col;
  const Handle set = dataset(name);
  const Shape found = shape(name);
  if (found.dims.size() != 1 || found.dims[0] < source.total || found.type != "f32") {
    throw DataError(path_ + ": " + name + " is not the list of " + std::to_string(source.total) +
                    " or more f32 that state.h5 refers to");
  }
  Handle file_space = space_of(found.dims, name);
  Handle memory = space_of({piece.elements()}, name);
  const int64_t limit_elements = std::max<int64_t>(1, limit / static_cast<int64_t>(sizeof(float)));
  const int64_t cols_a_call = std::min(part.cols, limit_elements);
  const int64_t rows_a_call = std::max<int64_t>(1, limit_elements / part.cols);
  for (int64_t row = part.row; row < part.row + part.rows; row += rows_a_call) {
    const int64_t rows = std::min(rows_a_call, part.row + part.rows - row);
    for (int64_t col = part.col; col < part.col + part.cols; col += cols_a_call) {
      const int64_t cols = std::min(cols_a_call, part.col + part.cols - col);
      select_rows(file_space.id(), source.at + (row - from.row) * from.cols + col - from.col, from.cols, rows, cols);
      select_rows(memory.id(), (row - piece.row) * piece.cols + col - piece.col, piece.cols, rows, cols);
      checked(H5Dread(set.id(), H5T_NATIVE_FLOAT, memory.id(), file_space.id(), H5P_DEFAULT, data),
              "cannot read " + name);
    }
  }
}

void File::write_floats(const std::string& name, const Piece& piece, const float* data, int64_t limit) {
  transfer(name, piece, const_cast<float*>(data), limit, true);
}

void File::read_floats(const std::string& name, const Piece& piece, float* data, int64_t limit) const {
  if (piece.elements() == 0) return;
  const std::vector<Source> spread = sources(name);
  if (spread.empty()) {
    transfer(name, piece, data, limit, false);
    return;
  }
  int64_t found = 0;
  for (const Source& s : spread) {
    const int64_t rows =
        std::min(s.piece.row + s.piece.rows, piece.row + piece.rows) - std::max(s.piece.row, piece.row);
    const int64_t cols =
        std::min(s.piece.col + s.piece.cols, piece.col + piece.cols) - std::max(s.piece.col, piece.col);
    if (rows <= 0 || cols <= 0) continue;
    source_file(s.file).read_source(s, name, piece, data, limit);
    found += rows * cols;
  }
  if (found != piece.elements()) {
    throw DataError(path_ + ": " + name + ": " + std::to_string(piece.elements() - found) + " of " +
                    std::to_string(piece.elements()) + " elements are in no file");
  }
}

}  // namespace orthant::h5
