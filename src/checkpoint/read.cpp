// Loading from any mesh to any mesh: every rank reads its own rectangles with the POSIX driver.
#include <unistd.h>

#include <algorithm>
#include <set>

#include "checkpoint/folders.hpp"
#include "checkpoint/hdf5.hpp"
#include "checkpoint/write.hpp"
#include "orthant/checkpoint.hpp"
#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

static std::string as_text(const std::vector<int64_t>& dims) {
  std::string text;
  for (int64_t d : dims) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return "[" + text + "]";
}

static std::string broadcast(MPI_Comm comm, std::string text) {
  int64_t size = static_cast<int64_t>(text.size());
  ORTHANT_MPI(MPI_Bcast(&size, 1, MPI_INT64_T, 0, comm));
  text.resize(static_cast<size_t>(size));
  ORTHANT_MPI(MPI_Bcast(text.data(), static_cast<int>(size), MPI_CHAR, 0, comm));
  return text;
}

// Rank i of the communicator reads files i, i + ranks, …; the first problem found by the lowest rank, on all ranks.
static std::string shared_problem(MPI_Comm comm, const std::string& folder, const Manifest& manifest,
                                  bool checksums) {
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  std::string problem;
  for (size_t i = static_cast<size_t>(rank); i < manifest.files.size() && problem.empty();
       i += static_cast<size_t>(ranks)) {
    problem = problem_of(folder, manifest.files[i], checksums);
  }
  int first = problem.empty() ? ranks : rank;
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, comm));
  if (first == ranks) return "";
  int64_t size = static_cast<int64_t>(problem.size());
  ORTHANT_MPI(MPI_Bcast(&size, 1, MPI_INT64_T, first, comm));
  problem.resize(static_cast<size_t>(size));
  ORTHANT_MPI(MPI_Bcast(problem.data(), static_cast<int>(size), MPI_CHAR, first, comm));
  return problem;
}

std::optional<std::string> find_checkpoint(MPI_Comm comm, const std::string& checkpoints_folder,
                                           std::vector<std::string>* passed_over, Trust trust) {
  int rank = 0;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  // One rank looks and the others believe it: on a shared file system they may see other things.
  std::vector<StepFolder> folders;
  collectively(comm, [&] {
    if (rank == 0) folders = list_step_folders(checkpoints_folder);
  });
  std::vector<std::string> bad;
  for (size_t i = 0;; ++i) {
    const bool more = i < folders.size();
    const std::string path = broadcast(comm, rank == 0 && more ? folders[i].path : "");
    if (path.empty()) break;
    std::string problem = broadcast(comm, rank == 0 ? folders[i].problem : "");
    if (problem.empty() && trust == Trust::checksums) {
      Manifest manifest;
      collectively(comm, [&] { manifest = read_manifest(path); });
      problem = shared_problem(comm, path, manifest, true);
    }
    if (problem.empty()) {
      if (passed_over) *passed_over = bad;
      return path;
    }
    bad.push_back(problem.rfind(path, 0) == 0 ? problem : path + ": " + problem);
  }
  if (passed_over) *passed_over = bad;
  return std::nullopt;
}

static TrainState read_train_state(const h5::File& file) {
  TrainState state;
  state.step = file.read_integer("train/step");
  state.tokens = file.read_integer("train/tokens");
  state.samples = file.read_integer("train/samples");
  state.decay_steps = file.read_integer("train/decay_steps");
  const std::set<std::string> fixed = {"step", "tokens", "samples", "decay_steps"};
  for (const std::string& key : file.children("train")) {
    if (fixed.count(key)) continue;
    const std::string path = "train/" + key, type = file.shape(path).type;
    if (type == "i64") {
      state.integers[key] = file.read_integer(path);
    } else if (type == "f64") {
      state.reals[key] = file.read_real(path);
    } else if (type == "text") {
      state.strings[key] = file.read_text(path);
    } else {
      throw DataError(file.path() + ": " + path + " is " + type + "; an i64, f64 or text is wanted");
    }
  }
  state.has_optimizer = !file.children("optimizer").empty();
  return state;
}

static CheckpointExtras read_extras(const h5::File& file) {
  CheckpointExtras extras;
  extras.deck_text = file.read_text("deck");
  extras.config_json = file.read_text("config");
  extras.source_dtype = file.read_text("source_dtype");
  for (const std::string& name : file.children("tokenizer")) {
    extras.tokenizer_files[name] = file.read_bytes("tokenizer/" + name);
  }
  return extras;
}

static void check_tensor(const h5::File& file, const StatePiece& p) {
  const std::string name = dataset_name(p.group, *p.param);
  const std::vector<int64_t> wanted = dataset_dims(*p.param);
  if (!file.exists(name)) {
    std::string there;
    if (p.group != "weights") {
      for (const std::string& slot : file.children("optimizer")) there += (there.empty() ? "" : ", ") + slot;
      there = "; the checkpoint has the optimiser state " + there;
    }
    throw DataError(file.path() + ": " + name + " is missing; the model wants it as " + as_text(wanted) + there);
  }
  const h5::Shape found = file.shape(name);
  if (found.dims != wanted) {
    throw DataError(file.path() + ": " + name + " is " + as_text(found.dims) + "; the model wants " +
                    as_text(wanted));
  }
  if (found.type != "f32") throw DataError(file.path() + ": " + name + " is " + found.type + "; f32 is wanted");
}

/// What file and model both have of a whole matrix, see StatePiece::optional.
static void read_optional(h5::File& file, const StatePiece& p) {
  const std::string name = dataset_name(p.group, *p.param);
  if (!file.exists(name)) return;
  const h5::Shape found = file.shape(name);
  const int64_t rows = p.param->rows(), cols = p.param->cols();
  if (found.type != "f32" || found.dims.size() != 2 || found.dims[0] != rows)
    throw DataError(file.path() + ": " + name + " is " + found.type + " " + as_text(found.dims) + "; f32 with " + std::to_string(rows) + " rows is wanted");
  const int64_t both = std::min(cols, found.dims[1]);
  std::vector<float> part(static_cast<size_t>(rows * both));
  file.read_floats(name, {0, rows, 0, both}, part.data());
  for (int64_t r = 0; r < rows; ++r) std::copy_n(part.begin() + r * both, both, p.data + r * cols);
}

// Weights that no rank asked for: the model has fewer parts than the one that was saved.
static void check_leftover(MPI_Comm comm, const h5::File& file, const std::vector<StatePiece>& pieces) {
  const std::vector<std::string> names = file.children("weights");
  std::vector<unsigned char> asked(names.size(), 0);
  for (const StatePiece& p : pieces) {
    if (p.group != "weights") continue;
    const auto at = std::lower_bound(names.begin(), names.end(), p.param->name);
    if (at != names.end() && *at == p.param->name) asked[static_cast<size_t>(at - names.begin())] = 1;
  }
  ORTHANT_MPI(
      MPI_Allreduce(MPI_IN_PLACE, asked.data(), static_cast<int>(asked.size()), MPI_UNSIGNED_CHAR, MPI_MAX, comm));
  const auto left = std::find(asked.begin(), asked.end(), 0);
  collectively(comm, [&] {
    if (left == asked.end()) return;
    const std::string name = names[static_cast<size_t>(left - asked.begin())];
    throw DataError(file.path() + ": holds weights/" + name + " " + as_text(file.shape("weights/" + name).dims) +
                    ", which the model does not have (" + std::to_string(std::count(asked.begin(), asked.end(), 0)) +
                    " such tensors)");
  });
}

TrainState load_checkpoint(MPI_Comm comm, const std::string& folder, const std::vector<StatePiece>& pieces,
                           CheckpointExtras* extras, Trust trust, const AcceptCheckpoint& accept) {
  Manifest manifest;
  collectively(comm, [&] { manifest = read_manifest(folder); });
  const std::string problem = shared_problem(comm, folder, manifest, trust == Trust::checksums);
  if (!problem.empty()) throw DataError(folder + ": damaged: " + problem, true);

  std::optional<h5::File> file;
  TrainState state;
  collectively(comm, [&] {
    file.emplace(h5::File::open_read(folder + "/" + state_file));
    state = read_train_state(*file);
    if (extras || accept) {
      CheckpointExtras found = read_extras(*file);
      found.mesh = manifest.mesh;
      if (accept) accept(state, found);
      if (extras) *extras = std::move(found);
    }
  });
  collectively(comm, [&] {
    for (const StatePiece& p : pieces) {
      if (!p.optional && (p.group == "weights" || state.has_optimizer)) check_tensor(*file, p);
    }
  });
  check_leftover(comm, *file, pieces);
  collectively(comm, [&] {
    for (const StatePiece& p : pieces) {
      if (p.optional)
        read_optional(*file, p);
      else if (p.group == "weights" || state.has_optimizer)
        file->read_floats(dataset_name(p.group, *p.param), p.piece, p.data);
    }
    file->close();
  });
  return state;
}

bool is_checkpoint(const std::string& folder) { return ::access((folder + "/" + manifest_name).c_str(), F_OK) == 0; }

std::vector<std::string> verify_checkpoint(const std::string& folder) {
  std::vector<std::string> problems;
  try {
    for (const ManifestFile& file : read_manifest(folder).files) {
      const std::string problem = problem_of(folder, file, true);
      if (!problem.empty()) problems.push_back(problem);
    }
  } catch (const DataError& e) {
    problems.emplace_back(e.what());
  }
  return problems;
}

CheckpointContents read_checkpoint_contents(const std::string& folder) {
  const Manifest manifest = read_manifest(folder);
  for (const ManifestFile& entry : manifest.files) {
    const std::string problem = problem_of(folder, entry, false);
    if (!problem.empty()) throw DataError(folder + ": damaged: " + problem);
  }
  const h5::File file = h5::File::open_read(folder + "/" + state_file);
  CheckpointContents contents;
  contents.state = read_train_state(file);
  contents.extras = read_extras(file);
  contents.extras.mesh = manifest.mesh;
  contents.bytes = manifest.bytes();
  contents.ranks = manifest.ranks;
  std::vector<std::string> groups = {"weights"};
  for (const char* kind : {"optimizer", "fp8"})
    for (const std::string& child : file.children(kind)) groups.push_back(std::string(kind) + "/" + child);
  for (const std::string& group : groups) {
    for (const std::string& name : file.children(group)) {
      const h5::Shape shape = file.shape(group + "/" + name);
      contents.tensors.push_back({group + "/" + name, shape.dims, shape.type, shape.bytes});
      if (group == "weights") contents.parameters += shape.bytes / 4;
    }
  }
  return contents;
}

}  // namespace orthant
