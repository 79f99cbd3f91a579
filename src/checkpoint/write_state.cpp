// What one process does of a save: the empty state file at its full size, and sealing the folder.
#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "checkpoint/folders.hpp"
#include "checkpoint/hdf5.hpp"
#include "checkpoint/write.hpp"
#include "orthant/error.hpp"

namespace orthant {

int64_t StateTensor::elements() const {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

std::string dataset_name(const std::string& group, const Param& param) { return group + "/" + param.name; }

std::vector<int64_t> dataset_dims(const Param& param) {
  std::vector<int64_t> dims;
  for (const Dim& d : param.dims) dims.push_back(d.size);
  return dims;
}

// Upper bounds: headers, small contents, and tensors with their alignment.
static int64_t small_bytes(const std::vector<StateTensor>& tensors, const CheckpointExtras& extras) {
  int64_t bytes = (int64_t{1} << 20) + 2048 * static_cast<int64_t>(tensors.size());
  bytes += static_cast<int64_t>(extras.deck_text.size() + extras.config_json.size());
  for (const auto& [name, content] : extras.tokenizer_files) bytes += static_cast<int64_t>(content.size());
  return bytes;
}

static int64_t tensor_bytes(const std::vector<StateTensor>& tensors) {
  int64_t bytes = 0;
  for (const StateTensor& t : tensors) {
    const int64_t size = t.elements() * 4;
    bytes += size + (size >= int64_t{4} << 20 ? int64_t{1} << 20 : 0);
  }
  return bytes;
}

static void write_train_state(h5::File& file, const TrainState& state) {
  std::set<std::string> used;
  const auto key = [&](const std::string& name) {
    ORTHANT_ENSURE(!name.empty() && name.find('/') == std::string::npos, "bad key of the training state: " + name);
    ORTHANT_ENSURE(used.insert(name).second, "key of the training state given twice: " + name);
    return "train/" + name;
  };
  file.create_group("train");
  file.write_integer(key("step"), state.step);
  file.write_integer(key("tokens"), state.tokens);
  file.write_integer(key("samples"), state.samples);
  file.write_integer(key("decay_steps"), state.decay_steps);
  for (const auto& [name, value] : state.integers) file.write_integer(key(name), value);
  for (const auto& [name, value] : state.reals) file.write_real(key(name), value);
  for (const auto& [name, value] : state.strings) file.write_text(key(name), value);
}

void create_state_file(const std::string& folder, const std::vector<StateTensor>& tensors, const TrainState& state,
                       const CheckpointExtras& extras) {
  const int64_t small = small_bytes(tensors, extras);
  require_space(folder, small + tensor_bytes(tensors), small);
  const std::string path = folder + "/" + state_file;
  h5::File file = h5::File::create(path);
  file.create_group("weights");
  std::set<std::string> groups = {"weights"};
  for (const StateTensor& t : tensors) {
    const std::string group = t.name.substr(0, t.name.rfind('/'));
    if (groups.insert(group).second) file.create_group(group);
    file.create_floats(t.name, t.dims);
  }
  write_train_state(file, state);
  file.write_text("deck", extras.deck_text);
  file.write_text("config", extras.config_json);
  file.write_text("source_dtype", extras.source_dtype);
  file.create_group("tokenizer");
  for (const auto& [name, content] : extras.tokenizer_files) {
    ORTHANT_ENSURE(!name.empty() && name.find('/') == std::string::npos, "bad name of a tokenizer file: " + name);
    file.write_bytes("tokenizer/" + name, content);
  }
  file.close();
  // Where blocks cannot be reserved, a full disk shows as a failed write of one rank, which all agree on.
  reserve_blocks(path, static_cast<int64_t>(std::filesystem::file_size(path)));
}

int64_t seal_folder(const std::string& temporary, const std::string& final_path, int64_t step, int64_t sequence,
                    int ranks, const std::string& mesh, bool optimizer) {
  Manifest manifest;
  manifest.step = step;
  manifest.sequence = sequence;
  manifest.ranks = ranks;
  manifest.mesh = mesh;
  manifest.optimizer = optimizer;
  manifest.files.push_back(hash_file(temporary, state_file));
  write_manifest(temporary, manifest);
  sync_path(temporary);
  publish_folder(temporary, final_path);
  return manifest.bytes();
}

}  // namespace orthant
