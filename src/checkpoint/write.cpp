// Saving from all ranks.
//
//   all     tell rank 0 which rectangles they write; it checks that each tensor is covered once
//   rank 0  .writing-<step>-<job>/state.h5 at full size: shapes, small contents, blocks of the disk
//   leads   data-<group>.h5 at full size, where several groups of ranks have files of their own
//   all     write their rectangles (independent MPI-IO), bring them to disk
//   leads   checksums
//   rank 0  manifest.json, final name, `latest`, removal of older ones
//
// After each step all ranks agree on how it went, so an error of one is thrown by all, and rank 0 removes what
// was written.
#include "checkpoint/write.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "checkpoint/coverage.hpp"
#include "checkpoint/file_groups.hpp"
#include "checkpoint/folders.hpp"
#include "checkpoint/hdf5.hpp"
#include "orthant/checkpoint.hpp"
#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

namespace {

void write_pieces(const FileGroups& groups, const std::string& path, const std::vector<StatePiece>& pieces,
                  const std::vector<int64_t>& at, const h5::Hints& hints, const std::function<void(size_t)>& written,
                  h5::Hints& in_effect) {
  h5::File file = h5::File::open_shared(path, groups.group(), hints);
  std::exception_ptr error;
  try {
    if (!hints.empty()) in_effect = file.effective_hints();
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (at[i] >= 0) {
        const StatePiece& p = pieces[i];
        const Piece flat{at[i], p.piece.elements(), 0, 1};
        file.write_floats(dataset_name(p.group, *p.param), groups.spread() ? flat : p.piece, p.data);
      }
      if (written) written(i);
    }
  } catch (...) {
    error = std::current_exception();
  }
  wait_for_all(groups.group());
  // Collective, hence on every rank by the same call, also on one whose write failed.
  try {
    file.close();
  } catch (...) {
    if (!error) throw;
  }
  if (error) std::rethrow_exception(error);
}

// The leads' data files with their checksums, on rank 0. Hashed side by side: one rank would hold up all others.
std::vector<ManifestFile> hash_data_files(MPI_Comm comm, const FileGroups& groups, const std::string& folder) {
  ManifestFile own;
  collectively(comm, [&] {
    if (groups.lead()) own = hash_file(folder, data_file_name(groups.index()));
  });
  std::vector<ManifestFile> files;
  if (!groups.lead()) return files;
  const uint64_t numbers[2] = {static_cast<uint64_t>(own.bytes), own.xxh64};
  std::vector<uint64_t> all(2 * static_cast<size_t>(groups.count()));
  ORTHANT_MPI(MPI_Gather(numbers, 2, MPI_UINT64_T, all.data(), 2, MPI_UINT64_T, 0, groups.leads()));
  if (groups.index() != 0) return files;
  for (int i = 0; i < groups.count(); ++i) {
    const size_t k = 2 * static_cast<size_t>(i);
    files.push_back({data_file_name(i), static_cast<int64_t>(all[k]), all[k + 1]});
  }
  return files;
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
                           const CheckpointExtras& extras, const SaveSettings& settings) {
  return write_checkpoint(comm, checkpoints_folder, step, job, pieces, state, extras, settings, nullptr);
}

SaveReport write_checkpoint(MPI_Comm comm, const std::string& checkpoints_folder, int64_t step,
                            const std::string& job, const std::vector<StatePiece>& pieces, const TrainState& state,
                            const CheckpointExtras& extras, const SaveSettings& settings,
                            const std::function<void(size_t)>& written) {
  const auto start = std::chrono::steady_clock::now();
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  const bool lead = rank == 0;
  const std::string name = step_folder_name(step), final_path = checkpoints_folder + "/" + name;
  const std::string temporary = checkpoints_folder + "/.writing-" + std::to_string(step) + "-" + plain(job);
  const std::string state_path = temporary + "/" + state_file;

  collectively(comm, [&] {
    ORTHANT_ENSURE(state.step == step, "the training state is of another step");
    ORTHANT_ENSURE(settings.keep >= 1, "checkpoint.keep is at least 1");
    ORTHANT_ENSURE(settings.files >= -1, "checkpoint.files is at least -1");
    h5::check_hints(settings.mpi_info);
    check_pieces(pieces);
  });
  const FileGroups groups(comm, settings.files);
  const std::string path = groups.spread() ? temporary + "/" + data_file_name(groups.index()) : state_path;
  int64_t totals[2] = {0, 0};  // bytes, files
  h5::Hints in_effect;
  SaveReport report;
  try {
    const WritePlan plan = gather_coverage(comm, groups, pieces);
    Manifest manifest;
    manifest.step = step;
    manifest.ranks = ranks;
    manifest.mesh = extras.mesh;
    manifest.optimizer = false;
    collectively(comm, [&] {
      if (!lead) return;
      make_folder(checkpoints_folder);
      remove_leftovers(checkpoints_folder);
      for (const StepFolder& f : list_step_folders(checkpoints_folder)) {
        manifest.sequence = std::max(manifest.sequence, f.manifest.sequence);
      }
      ++manifest.sequence;
      make_folder(temporary);
      std::vector<StateTensor> tensors;
      for (const auto& [tensor, covered] : plan.coverage) {
        tensors.push_back({tensor, covered.dims, groups.spread() ? covered.sources : std::vector<h5::Source>{}});
        manifest.optimizer |= tensor.rfind("optimizer/", 0) == 0;
      }
      create_state_file(temporary, tensors, state, extras, settings.mpi_info);
    });
    if (groups.spread()) {
      collectively(comm, [&] {
        if (!groups.lead()) return;
        wait_until_visible(temporary);
        create_data_file(temporary, data_file_name(groups.index()), plan.totals, settings.mpi_info);
      });
    }
    // Opened here once by each rank alone: where one may not, the others would wait for it inside MPI-IO for ever.
    collectively(comm, [&] {
      wait_until_visible(path);
      const Descriptor may_write(path, O_RDWR);
    });
    collectively(comm, [&] { write_pieces(groups, path, pieces, plan.at, settings.mpi_info, written, in_effect); });
    collectively(comm, [&] {
      sync_path(path);  // each node's own cache
      if (lead && groups.spread()) sync_path(state_path);
    });
    if (groups.spread()) manifest.files = hash_data_files(comm, groups, temporary);
    collectively(comm, [&] {
      if (!lead) return;
      totals[1] = static_cast<int64_t>(manifest.files.size()) + 1;
      totals[0] = seal_folder(temporary, final_path, std::move(manifest));
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
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // The checkpoint is complete: a pointer that stays behind misleads people only (nobody here reads it), and what
  // cannot be removed costs space.
  const auto besides = [&](const std::function<void()>& work) {
    try {
      work();
    } catch (const DataError& e) {
      report.note += (report.note.empty() ? "" : "; ") + std::string(e.what());
    }
  };
  if (lead) {
    besides([&] { point_latest(checkpoints_folder, name); });
    besides([&] { remove_older(checkpoints_folder, name, settings.keep); });
  }
  wait_for_all(comm);
  ORTHANT_MPI(MPI_Bcast(totals, 2, MPI_INT64_T, 0, comm));
  report.folder = final_path;
  report.bytes = totals[0];
  report.files = totals[1];
  for (const auto& [key, value] : settings.mpi_info) {
    if (in_effect.count(key)) report.hints[key] = in_effect[key];
  }
  return report;
}

void prepare_checkpoints_folder(MPI_Comm comm, const std::string& checkpoints_folder, const SaveSettings& settings) {
  int rank = 0;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  collectively(comm, [&] {
    h5::check_hints(settings.mpi_info);
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
