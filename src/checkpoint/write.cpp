// Saving from all ranks.
//
//   all     tell rank 0 which rectangles they write; it checks that each tensor is covered once
//   rank 0  .writing-<step>-<job>/state.h5 at full size: shapes, small contents, blocks of the disk
//   all     write their rectangles (independent MPI-IO), bring them to disk
//   rank 0  checksums, manifest.json, final name, `latest`, removal of older ones
//
// After each step all ranks agree on how it went, so an error of one is thrown by all, and rank 0 removes what
// was written.
#include "checkpoint/write.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>
#include <thread>

#include "checkpoint/folders.hpp"
#include "checkpoint/hdf5.hpp"
#include "orthant/checkpoint.hpp"
#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

namespace {

struct Covered {
  std::vector<int64_t> dims;
  std::vector<Piece> pieces;
};
using Coverage = std::map<std::string, Covered>;  // sorted: the order of datasets does not depend on the mesh

std::string as_text(const std::vector<int64_t>& dims) {
  std::string text;
  for (int64_t d : dims) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return "[" + text + "]";
}

void check_pieces(const std::vector<StatePiece>& pieces) {
  for (const StatePiece& p : pieces) {
    ORTHANT_ENSURE(p.param != nullptr && !p.param->dims.empty() && p.param->dims.size() <= 2,
                   "a piece has no parameter");
    ORTHANT_ENSURE(p.group == "weights" || p.group.rfind("optimizer/", 0) == 0, "unknown group " + p.group);
    ORTHANT_ENSURE(p.piece.row >= 0 && p.piece.rows >= 0 && p.piece.row + p.piece.rows <= p.param->rows() &&
                       p.piece.col >= 0 && p.piece.cols >= 0 && p.piece.col + p.piece.cols <= p.param->cols(),
                   "piece outside of " + dataset_name(p.group, *p.param));
    ORTHANT_ENSURE(p.piece.elements() == 0 || p.data != nullptr, "no data for " + dataset_name(p.group, *p.param));
  }
}

// One line a written piece: name, dims, rectangle.
std::string describe(const std::vector<StatePiece>& pieces) {
  std::ostringstream out;
  for (const StatePiece& p : pieces) {
    if (!p.writer || p.piece.elements() == 0) continue;
    out << dataset_name(p.group, *p.param) << ' ' << p.param->dims.size() << ' ' << p.param->rows() << ' '
        << p.param->cols() << ' ' << p.piece.row << ' ' << p.piece.rows << ' ' << p.piece.col << ' ' << p.piece.cols
        << '\n';
  }
  return out.str();
}

void add_described(const std::string& text, int rank, Coverage& coverage) {
  std::istringstream in(text);
  std::string name;
  int64_t dims = 0, rows = 0, cols = 0;
  Piece piece;
  while (in >> name >> dims >> rows >> cols >> piece.row >> piece.rows >> piece.col >> piece.cols) {
    Covered& tensor = coverage[name];
    const std::vector<int64_t> shape = dims == 1 ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, cols};
    if (tensor.dims.empty()) tensor.dims = shape;
    ORTHANT_ENSURE(tensor.dims == shape, name + " is " + as_text(shape) + " on rank " + std::to_string(rank) +
                                             " and " + as_text(tensor.dims) + " on another");
    tensor.pieces.push_back(piece);
  }
}

Coverage gather_coverage(MPI_Comm comm, const std::vector<StatePiece>& pieces) {
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  std::vector<std::string> texts;
  const std::string mine = describe(pieces);
  constexpr int tag = 71;
  if (rank != 0) {
    ORTHANT_MPI(MPI_Send(mine.data(), static_cast<int>(mine.size()), MPI_CHAR, 0, tag, comm));
    return {};
  }
  texts.push_back(mine);
  // One message a rank: a single gather could pass 2 GiB on large meshes.
  for (int from = 1; from < ranks; ++from) {
    MPI_Status status;
    int size = 0;
    ORTHANT_MPI(MPI_Probe(from, tag, comm, &status));
    ORTHANT_MPI(MPI_Get_count(&status, MPI_CHAR, &size));
    std::string text(static_cast<size_t>(size), '\0');
    ORTHANT_MPI(MPI_Recv(text.data(), size, MPI_CHAR, from, tag, comm, MPI_STATUS_IGNORE));
    texts.push_back(std::move(text));
  }
  Coverage coverage;
  for (int from = 0; from < ranks; ++from) add_described(texts[static_cast<size_t>(from)], from, coverage);
  return coverage;
}

// Areas that add up to the whole and do not overlap leave no hole.
void check_coverage(Coverage& coverage) {
  for (auto& [name, tensor] : coverage) {
    int64_t whole = 1, sum = 0;
    for (int64_t d : tensor.dims) whole *= d;
    auto& pieces = tensor.pieces;
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return std::pair(a.row, a.col) < std::pair(b.row, b.col); });
    for (size_t i = 0; i < pieces.size(); ++i) {
      sum += pieces[i].elements();
      for (size_t j = i + 1; j < pieces.size() && pieces[j].row < pieces[i].row + pieces[i].rows; ++j) {
        ORTHANT_ENSURE(
            pieces[j].col >= pieces[i].col + pieces[i].cols || pieces[i].col >= pieces[j].col + pieces[j].cols,
            name + " is written twice at row " + std::to_string(pieces[j].row));
      }
    }
    ORTHANT_ENSURE(sum == whole,
                   name + ": " + std::to_string(sum) + " of " + std::to_string(whole) + " elements are written");
  }
}

void write_pieces(MPI_Comm comm, const std::string& path, const std::vector<StatePiece>& pieces) {
  h5::File file = h5::File::open_shared(path, comm);
  std::exception_ptr error;
  try {
    for (const StatePiece& p : pieces) {
      const std::string name = dataset_name(p.group, *p.param);
      if (p.writer) {
        file.write_floats(name, p.piece, p.data);
      } else {
        ORTHANT_ENSURE(p.piece.elements() == 0 || file.exists(name), name + " has no rank that writes it");
      }
    }
  } catch (...) {
    error = std::current_exception();
  }
  // Collective, hence on every rank by the same call, also on one whose write failed.
  try {
    file.close();
  } catch (...) {
    if (!error) throw;
  }
  if (error) std::rethrow_exception(error);
}

std::string plain(const std::string& job) {
  std::string name;
  for (char c : job) name += std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ? c : '_';
  return name.empty() ? "job" : name;
}

}  // namespace

// Shared file systems may show a file to other nodes seconds after it was made.
static void wait_until_visible(const std::string& path) {
  using namespace std::chrono_literals;
  struct stat info {};
  for (int tries = 0; ::stat(path.c_str(), &info) != 0; ++tries) {
    if (tries == 300) throw DataError(path + ": made by another rank, but not visible here after 30 s");
    std::this_thread::sleep_for(100ms);
  }
}

SaveReport save_checkpoint(MPI_Comm comm, const std::string& checkpoints_folder, int64_t step, const std::string& job,
                           const std::vector<StatePiece>& pieces, const TrainState& state,
                           const CheckpointExtras& extras, int keep) {
  const auto start = std::chrono::steady_clock::now();
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  const bool lead = rank == 0;
  const std::string name = step_folder_name(step), final_path = checkpoints_folder + "/" + name;
  const std::string temporary = checkpoints_folder + "/.writing-" + std::to_string(step) + "-" + plain(job);
  const std::string path = temporary + "/" + state_file;

  collectively(comm, [&] {
    ORTHANT_ENSURE(state.step == step, "the training state is of another step");
    ORTHANT_ENSURE(keep >= 1, "checkpoint.keep is at least 1");
    check_pieces(pieces);
  });
  Coverage coverage;
  int64_t sequence = 0, bytes = 0;
  SaveReport report;
  try {
    collectively(comm, [&] { coverage = gather_coverage(comm, pieces); });
    collectively(comm, [&] {
      if (!lead) return;
      check_coverage(coverage);
      make_folder(checkpoints_folder);
      remove_leftovers(checkpoints_folder);
      for (const StepFolder& f : list_step_folders(checkpoints_folder)) {
        sequence = std::max(sequence, f.manifest.sequence);
      }
      make_folder(temporary);
      std::vector<StateTensor> tensors;
      for (const auto& [tensor, covered] : coverage) tensors.push_back({tensor, covered.dims});
      create_state_file(temporary, tensors, state, extras);
    });
    collectively(comm, [&] { wait_until_visible(path); });
    collectively(comm, [&] { write_pieces(comm, path, pieces); });
    collectively(comm, [&] { sync_path(path); });  // each node's own cache
    collectively(comm, [&] {
      if (!lead) return;
      bool optimizer = false;
      for (const auto& [tensor, covered] : coverage) optimizer |= tensor.rfind("optimizer/", 0) == 0;
      bytes = seal_folder(temporary, final_path, step, sequence + 1, ranks, extras.mesh, optimizer);
      point_latest(checkpoints_folder, name);
    });
  } catch (...) {
    if (lead) {
      try {
        remove_folder(temporary);
      } catch (const DataError&) {  // the first error is the one to report; the next save tries to remove it again
      }
    }
    throw;
  }
  // The checkpoint is complete: what cannot be removed costs space, not the save.
  if (lead) {
    try {
      remove_older(checkpoints_folder, name, keep);
    } catch (const DataError& e) {
      report.note = e.what();
    }
  }
  ORTHANT_MPI(MPI_Bcast(&bytes, 1, MPI_INT64_T, 0, comm));
  report.folder = final_path;
  report.bytes = bytes;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

void prepare_checkpoints_folder(MPI_Comm comm, const std::string& checkpoints_folder) {
  int rank = 0;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  collectively(comm, [&] {
    if (rank != 0) return;
    make_folder(checkpoints_folder);
    const std::string probe = checkpoints_folder + "/.writable";
    write_file_durably(probe, "x");
    ::unlink(probe.c_str());
  });
  collectively(comm, [&] {
    wait_until_visible(checkpoints_folder);
    if (::access(checkpoints_folder.c_str(), W_OK | X_OK) != 0) {
      throw DataError(checkpoints_folder + ": no right to write there on this rank");
    }
  });
}

}  // namespace orthant
