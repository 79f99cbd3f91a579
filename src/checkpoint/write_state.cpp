// What one process does of a save: empty files at their full size, and sealing the folder.
#include <sys/stat.h>

#include <filesystem>
#include <map>
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

// Upper bounds: headers, small contents, the maps of virtual datasets, and tensors with their alignment.
static constexpr int64_t header_bytes = int64_t{1} << 20, dataset_bytes = 2048, source_bytes = 512;

static int64_t small_bytes(const std::vector<StateTensor>& tensors, const CheckpointExtras& extras) {
  int64_t bytes = header_bytes + dataset_bytes * static_cast<int64_t>(tensors.size());
  for (const StateTensor& t : tensors) {
    bytes += static_cast<int64_t>(t.sources.size()) * (source_bytes + static_cast<int64_t>(t.name.size()));
  }
  bytes += static_cast<int64_t>(extras.deck_text.size() + extras.config_json.size());
  for (const auto& [name, content] : extras.tokenizer_files) bytes += static_cast<int64_t>(content.size());
  return bytes;
}

static int64_t padded(int64_t elements, const h5::Hints& hints) {
  const int64_t alignment = h5::alignment_of(hints), size = elements * 4;
  return size + (size >= h5::aligned_from(alignment) ? alignment : 0);
}

// In whatever files they lie.
static int64_t tensor_bytes(const std::vector<StateTensor>& tensors, const h5::Hints& hints) {
  int64_t bytes = 0;
  std::map<std::string, int64_t> datasets;  // of the data files
  for (const StateTensor& t : tensors) {
    if (t.sources.empty()) bytes += padded(t.elements(), hints);
    std::map<std::string, int64_t> totals;
    for (const h5::Source& s : t.sources) totals[s.file] = s.total;
    for (const auto& [file, total] : totals) {
      bytes += padded(total, hints) + dataset_bytes;
      ++datasets[file];
    }
  }
  return bytes + static_cast<int64_t>(datasets.size()) * header_bytes;
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

static void make_parent(h5::File& file, const std::string& name, std::set<std::string>& made) {
  const std::string group = name.substr(0, name.rfind('/'));
  if (made.insert(group).second) file.create_group(group);
}

void create_state_file(const std::string& folder, const std::vector<StateTensor>& tensors, const TrainState& state,
                       const CheckpointExtras& extras, const h5::Hints& hints) {
  const int64_t small = small_bytes(tensors, extras);
  require_space(folder, small + tensor_bytes(tensors, hints), small);
  const std::string path = folder + "/" + state_file;
  h5::File file = h5::File::create(path, hints);
  file.create_group("weights");
  std::set<std::string> groups = {"weights"};
  for (const StateTensor& t : tensors) {
    make_parent(file, t.name, groups);
    if (t.sources.empty()) {
      file.create_floats(t.name, t.dims);
    } else {
      file.create_virtual_floats(t.name, t.dims, t.sources);
    }
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

void create_data_file(const std::string& folder, const std::string& name,
                      const std::map<std::string, int64_t>& tensors, const h5::Hints& hints) {
  const int64_t small = header_bytes + dataset_bytes * static_cast<int64_t>(tensors.size());
  int64_t bytes = small;
  for (const auto& [tensor, elements] : tensors) bytes += padded(elements, hints);
  require_space(folder, bytes, small, ".room-" + name);
  const std::string path = folder + "/" + name;
  h5::File file = h5::File::create(path, hints);
  std::set<std::string> groups;
  for (const auto& [tensor, elements] : tensors) {
    make_parent(file, tensor, groups);
    file.create_floats(tensor, {elements});
  }
  file.close();
  reserve_blocks(path, static_cast<int64_t>(std::filesystem::file_size(path)));
}

int64_t seal_folder(const std::string& temporary, const std::string& final_path, Manifest manifest) {
  manifest.files.insert(manifest.files.begin(), hash_file(temporary, state_file));
  write_manifest(temporary, manifest);
  sync_path(temporary);
  publish_folder(temporary, final_path);
  return manifest.bytes();
}

}  // namespace orthant
