// See hf_export.hpp.
#include "checkpoint/hf_export.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <unordered_map>

#include "checkpoint/strict_json.hpp"
#include "orthant/error.hpp"

namespace orthant {

namespace fs = std::filesystem;

namespace {

constexpr int64_t chunk_elements = int64_t{1} << 22;  // 16 MiB of floats in flight

// A file tensor and the parameters that fill it, by their first row.
struct Assembly {
  TensorSpec spec;
  std::vector<const Param*> parts;
  int64_t rows = 0;  // of the tensor before it is stored transposed
  bool transpose = false;
};

std::vector<Assembly> assemblies(const std::vector<Param>& params, const HfExportOptions& options) {
  std::vector<Assembly> all;
  std::unordered_map<std::string, size_t> index;
  for (const Param& p : params) {
    const auto [at, fresh] = index.emplace(p.file.tensor, all.size());
    const int64_t rows = p.file.file_rows ? p.file.file_rows : p.rows();
    if (fresh) {
      Assembly a;
      a.rows = rows;
      a.transpose = p.file.transpose && p.dims.size() > 1;
      const auto dtype = options.dtypes.find(p.file.tensor);
      a.spec = {p.file.tensor, dtype == options.dtypes.end() ? options.dtype : dtype->second, {rows}};
      if (p.dims.size() > 1) a.spec.shape.push_back(p.cols());
      if (a.transpose) std::reverse(a.spec.shape.begin(), a.spec.shape.end());
      all.push_back(std::move(a));
    }
    Assembly& a = all[at->second];
    ORTHANT_ENSURE(a.rows == rows && (a.parts.empty() || a.parts[0]->cols() == p.cols()),
                   "parameters disagree on the shape of " + p.file.tensor);
    a.parts.push_back(&p);
  }
  for (Assembly& a : all) {
    std::sort(a.parts.begin(), a.parts.end(),
              [](const Param* x, const Param* y) { return x->file.offset < y->file.offset; });
    int64_t at = 0;
    for (const Param* p : a.parts) {
      ORTHANT_ENSURE(p->file.offset == at, "the parameters do not use each row of " + a.spec.name + " once");
      at += p->rows();
    }
    ORTHANT_ENSURE(at == a.rows, "rows of " + a.spec.name + " are left over");
  }
  return all;
}

void write_tensor(const Assembly& a, const ParamSource& source, SafetensorsWriter& writer) {
  std::vector<float> piece, whole;
  const int64_t cols = a.parts[0]->cols();
  if (!a.transpose) {
    const int64_t step = std::max<int64_t>(1, chunk_elements / std::max<int64_t>(1, cols));
    for (const Param* p : a.parts) {
      for (int64_t row = 0; row < p->rows(); row += step) {
        const int64_t rows = std::min(step, p->rows() - row);
        piece.resize(static_cast<size_t>(rows * cols));
        source(*p, {row, rows, 0, cols}, piece.data());
        writer.write(a.spec.name, piece.data(), rows * cols);
      }
    }
    return;
  }
  // a row of the file is a column of every part, side by side
  const int64_t step = std::max<int64_t>(1, chunk_elements / std::max<int64_t>(1, a.rows));
  for (int64_t col = 0; col < cols; col += step) {
    const int64_t n = std::min(step, cols - col);
    whole.resize(static_cast<size_t>(n * a.rows));
    for (const Param* p : a.parts) {
      piece.resize(static_cast<size_t>(p->rows() * n));
      source(*p, {0, p->rows(), col, n}, piece.data());
      for (int64_t i = 0; i < p->rows(); ++i) {
        for (int64_t j = 0; j < n; ++j) whole[j * a.rows + p->file.offset + i] = piece[i * n + j];
      }
    }
    writer.write(a.spec.name, whole.data(), n * a.rows);
  }
}

void write_file(const std::string& path, const std::vector<Assembly>& all, size_t begin, size_t end,
                const ParamSource& source) {
  std::vector<TensorSpec> specs;
  for (size_t i = begin; i < end; ++i) specs.push_back(all[i].spec);
  SafetensorsWriter writer(path, specs);
  for (size_t i = begin; i < end; ++i) write_tensor(all[i], source, writer);
  writer.finish();
}

// The names under which a model's weights may lie in a folder; nothing else of a folder is ever removed.
std::vector<fs::path> model_files(const std::string& folder) {
  static const std::regex shard("model(-[0-9]{5}-of-[0-9]{5})?\\.safetensors(\\.index\\.json)?");
  std::vector<fs::path> found;
  for (const auto& item : fs::directory_iterator(folder)) {
    if (std::regex_match(item.path().filename().string(), shard)) found.push_back(item.path());
  }
  return found;
}

}  // namespace

HfExportOptions export_options(const std::string& dtype, const std::vector<Param>& params) {
  HfExportOptions options;
  options.dtype = dtype;
  if (dtype == "F32" || dtype == "F64") return options;
  for (const Param& p : params) {
    if (!p.trained) options.dtypes[p.file.tensor] = "F32";
  }
  return options;
}

std::vector<TensorSpec> file_tensors(const std::vector<Param>& params, const HfExportOptions& options) {
  std::vector<TensorSpec> specs;
  for (const Assembly& a : assemblies(params, options)) specs.push_back(a.spec);
  return specs;
}

void write_hf_folder(const std::string& folder, const std::vector<Param>& params, const std::string& config_text,
                     const ParamSource& source, const HfExportOptions& options) {
  ORTHANT_ENSURE(options.shard_bytes > 0, "shard limit must be positive");
  const std::vector<Assembly> all = assemblies(params, options);
  try {
    fs::create_directories(folder);
    const auto old = model_files(folder);
    if (!old.empty() && !options.overwrite) {
      throw DataError(folder + ": holds a model already (" + old[0].filename().string() +
                      "); name a folder without one, or remove it");
    }
    for (const fs::path& path : old) fs::remove(path);
  } catch (const fs::filesystem_error& e) {
    throw DataError(folder + ": cannot be prepared for writing: " + e.what());
  }
  write_file_atomically(folder + "/config.json", config_text);

  std::vector<size_t> cuts = {0};
  int64_t size = 0, total = 0, elements = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t bytes = all[i].spec.bytes();
    if (size > 0 && size + bytes > options.shard_bytes) {
      cuts.push_back(i);
      size = 0;
    }
    size += bytes;
    total += bytes;
    elements += all[i].spec.elements();
  }
  cuts.push_back(all.size());
  if (cuts.size() == 2) {
    write_file(folder + "/model.safetensors", all, 0, all.size(), source);
    return;
  }
  nlohmann::json index;
  index["metadata"] = {{"total_parameters", elements}, {"total_size", total}};
  for (size_t s = 0; s + 1 < cuts.size(); ++s) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", s + 1, cuts.size() - 1);
    write_file(folder + "/" + name, all, cuts[s], cuts[s + 1], source);
    for (size_t i = cuts[s]; i < cuts[s + 1]; ++i) index["weight_map"][all[i].spec.name] = name;
  }
  write_file_atomically(folder + "/model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace orthant
