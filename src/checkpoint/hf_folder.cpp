// See hf_folder.hpp.
#include "checkpoint/hf_folder.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>

#include "checkpoint/strict_json.hpp"
#include "orthant/error.hpp"

namespace orthant {

namespace fs = std::filesystem;

namespace {

constexpr const char* single_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* prefixes[] = {"transformer.", "model."};
constexpr const char* embedding_names[] = {"transformer.wte.weight", "model.embed_tokens.weight"};
constexpr const char* head_name = "lm_head.weight";

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Causal masks of GPT-2 and rotary tables of early Llama files: made of constants, rebuilt by us.
bool is_buffer(const std::string& name) {
  return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
         ends_with(name, "rotary_emb.inv_freq");
}

std::string list_of(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(most, names.size()); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > most) text += ", and " + std::to_string(names.size() - most) + " more";
  return text;
}

}  // namespace

HfFolder::HfFolder(const std::string& folder) : folder_(folder) {
  std::error_code ec;
  if (!fs::is_directory(folder, ec)) throw DataError(folder + ": no such folder");
  const std::string single = folder + "/" + single_name, index = folder + "/" + index_name;
  const bool has_single = fs::exists(single, ec), has_index = fs::exists(index, ec);
  if (has_single && has_index) {
    throw DataError(folder + ": holds both " + single_name + " and " + index_name +
                    ", so it is not clear which is the model; remove the older one");
  }
  if (has_single)
    add_file(single);
  else if (has_index)
    open_index(index);
  else
    throw DataError(folder + ": holds neither " + single_name + " nor " + index_name);
}

void HfFolder::add_file(const std::string& path) {
  files_.emplace_back(path);
  for (const TensorEntry& e : files_.back().entries()) {
    const auto [at, fresh] = file_of_.emplace(e.name, files_.size() - 1);
    if (!fresh) {
      throw DataError("tensor \"" + e.name + "\" is in two files, " + files_[at->second].path() + " and " + path);
    }
  }
}

void HfFolder::open_index(const std::string& path) {
  const nlohmann::json index = parse_json_object(read_small_file(path), path);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object() || map->empty()) {
    throw DataError(path + ": has no \"weight_map\" object naming the file of each tensor");
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) throw DataError(path + ": tensor \"" + tensor + "\": the file's name must be a string");
    const auto& name = file.get_ref<const std::string&>();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
      throw DataError(path + ": tensor \"" + tensor + "\" is said to be in \"" + name +
                      "\"; a plain file name in the same folder is right");
    }
    names.insert(name);
  }
  std::vector<std::string> missing;
  std::error_code ec;
  for (const std::string& name : names) {
    if (!fs::exists(folder_ + "/" + name, ec)) missing.push_back(name);
  }
  if (!missing.empty()) {
    std::string example;
    for (const auto& [tensor, file] : map->items()) {
      if (example.empty() && file.get_ref<const std::string&>() == missing[0]) example = tensor;
    }
    throw DataError(path + ": " + std::to_string(missing.size()) + " of " + std::to_string(names.size()) +
                    " files are missing: " + list_of(missing, 10) + " (tensor \"" + example +
                    "\" should be in the first)");
  }
  for (const std::string& name : names) add_file(folder_ + "/" + name);

  for (const auto& [tensor, file] : map->items()) {
    const std::string said = folder_ + "/" + file.get<std::string>();
    const auto at = file_of_.find(tensor);
    if (at == file_of_.end()) {
      throw DataError(path + ": tensor \"" + tensor + "\" should be in " + said + ", but no file holds it");
    }
    if (files_[at->second].path() != said) {
      throw DataError(path + ": tensor \"" + tensor + "\" should be in " + said + ", but it is in " +
                      files_[at->second].path());
    }
  }
  for (const auto& [tensor, file] : file_of_) {
    if (!map->contains(tensor)) {
      throw DataError(files_[file].path() + ": tensor \"" + tensor + "\" is not in the index " + path);
    }
  }
}

HfFolder::Place HfFolder::locate(const std::string& name) const {
  auto at = file_of_.find(name);
  for (const char* prefix : prefixes) {
    if (at != file_of_.end()) break;
    const std::string p = prefix;
    if (name.compare(0, p.size(), p) == 0) at = file_of_.find(name.substr(p.size()));
  }
  for (const char* prefix : prefixes) {
    if (at != file_of_.end()) break;
    at = file_of_.find(prefix + name);
  }
  if (at == file_of_.end()) return {};
  const SafetensorsFile& file = files_[at->second];
  return {&file, file.find(at->first)};
}

const TensorEntry& HfFolder::entry(const std::string& name) const {
  const Place place = locate(name);
  if (!place.file) throw DataError(folder_ + ": no tensor \"" + name + "\"");
  return *place.entry;
}

std::vector<std::string> HfFolder::names() const {
  std::vector<std::string> all;
  all.reserve(file_of_.size());
  for (const auto& [name, file] : file_of_) all.push_back(name);
  std::sort(all.begin(), all.end());
  return all;
}

std::map<std::string, std::string> HfFolder::dtypes(const std::vector<Param>& params) const {
  std::map<std::string, std::string> out;
  for (const Param& p : params) out[p.file.tensor] = entry(p.file.tensor).dtype;
  return out;
}

// Square matrices pass any test of their shape either way round; so `transpose` comes from the family's table alone,
// and here only the global shape is compared.
HfFolder::Place HfFolder::checked(const Param& p) const {
  const Place place = locate(p.file.tensor);
  if (!place.file) {
    throw DataError(folder_ + ": no tensor \"" + p.file.tensor + "\" (parameter " + p.name + ")");
  }
  const TensorEntry& e = *place.entry;
  const int64_t file_rows = p.file.file_rows ? p.file.file_rows : p.rows();
  std::vector<int64_t> wanted = {file_rows};
  if (p.dims.size() > 1) wanted.push_back(p.cols());
  if (p.file.transpose) std::reverse(wanted.begin(), wanted.end());
  if (e.shape != wanted) {
    std::vector<int64_t> own = {p.rows()};
    if (p.dims.size() > 1) own.push_back(p.cols());
    throw DataError(place.file->path() + ": tensor \"" + e.name + "\" has shape " + e.shape_text() + ", but " +
                    shape_text(wanted) + " is right for parameter " + p.name + " " + shape_text(own) +
                    (p.file.transpose ? " (stored transposed)" : "") +
                    "; do config.json and weights belong together?");
  }
  if (!is_weight_dtype(e.dtype)) {
    throw DataError(place.file->path() + ": tensor \"" + e.name + "\" has dtype " + e.dtype +
                    ", which cannot be read as weights; F32, F16, BF16 and F64 can");
  }
  ORTHANT_ENSURE(p.file.offset >= 0 && p.file.offset + p.rows() <= file_rows,
                 "rows of " + p.name + " outside " + e.name);
  return place;
}

template <class T>
void HfFolder::read_as(const Param& p, const Piece& piece, T* out) const {
  ORTHANT_ENSURE(piece.row >= 0 && piece.rows >= 0 && piece.row + piece.rows <= p.rows() && piece.col >= 0 &&
                     piece.cols >= 0 && piece.col + piece.cols <= p.cols(),
                 "piece outside parameter " + p.name);
  const Place place = checked(p);
  place.file->read_region(*place.entry, p.file.offset + piece.row, piece.rows, piece.col, piece.cols,
                          p.file.transpose, out);
}

void HfFolder::read(const Param& param, const Piece& piece, float* out) const { read_as(param, piece, out); }
void HfFolder::read(const Param& param, const Piece& piece, double* out) const { read_as(param, piece, out); }

void HfFolder::check(const std::vector<Param>& params) const {
  std::vector<std::string> missing;
  std::unordered_set<std::string> named;
  for (const Param& p : params) {
    if (!has(p.file.tensor) && named.insert(p.file.tensor).second) missing.push_back(p.file.tensor);
  }
  if (!missing.empty()) {
    std::string text = folder_ + ": " + std::to_string(missing.size()) +
                       " tensors of the model are missing: " + list_of(missing, 10);
    if (named.count(head_name)) {
      text +=
          "; config.json says tie_word_embeddings false, so the head must be there (true, if it is meant to be the "
          "embedding \"" +
          std::string(embedding_names[has(embedding_names[0]) ? 0 : 1]) + "\")";
    }
    throw DataError(text);
  }
  // rows of each file tensor that parameters take: exactly once each (k and v must not share bytes)
  std::map<const TensorEntry*, std::vector<std::array<int64_t, 2>>> taken;
  for (const Param& p : params) {
    const Place place = checked(p);
    taken[place.entry].push_back({p.file.offset, p.file.offset + p.rows()});
  }
  for (auto& [e, ranges] : taken) {
    std::sort(ranges.begin(), ranges.end());
    int64_t at = 0;
    for (const auto& [begin, end] : ranges) {
      ORTHANT_ENSURE(begin == at, "the parameters do not use each row of " + e->name + " once");
      at = end;
    }
  }
  for (const Param& p : params) {
    const int64_t rows = p.file.file_rows ? p.file.file_rows : p.rows();
    ORTHANT_ENSURE(taken[locate(p.file.tensor).entry].back()[1] == rows,
                   "rows of " + p.file.tensor + " are left over");
  }
  check_tied_head(params);
}

void HfFolder::check_tied_head(const std::vector<Param>& params) const {
  const Place head = locate(head_name);
  if (!head.file) return;
  Place embedding;
  for (const Param& p : params) {
    if (p.file.tensor == head_name) return;  // untied: a parameter of its own
    for (const char* name : embedding_names) {
      if (p.file.tensor == name) embedding = locate(name);
    }
  }
  if (!embedding.file) return;
  const TensorEntry &a = *head.entry, &b = *embedding.entry;
  const std::string both =
      "\"" + a.name + "\" (" + head.file->path() + ") and \"" + b.name + "\" (" + embedding.file->path() + ")";
  const std::string right = "; equal tensors, or tie_word_embeddings false in config.json, would be right";
  if (a.shape != b.shape) {
    throw DataError("the model ties head and embedding, but " + both + " have shapes " + a.shape_text() + " and " +
                    b.shape_text() + right);
  }
  if (!is_weight_dtype(a.dtype)) {
    throw DataError(head.file->path() + ": tensor \"" + a.name + "\" has dtype " + a.dtype +
                    ", which no head may have");
  }
  const int64_t chunk = std::max<int64_t>(1, (int64_t{1} << 20) / std::max<int64_t>(1, a.cols()));
  std::vector<double> x, y;
  for (int64_t row = 0; row < a.rows(); row += chunk) {
    const int64_t rows = std::min(chunk, a.rows() - row);
    x.resize(static_cast<size_t>(rows * a.cols()));
    y.resize(x.size());
    head.file->read_region(a, row, rows, 0, a.cols(), false, x.data());
    embedding.file->read_region(b, row, rows, 0, a.cols(), false, y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i] || (x[i] != x[i] && y[i] != y[i])) continue;
      throw DataError("the model ties head and embedding, but " + both + " differ, first in row " +
                      std::to_string(row + static_cast<int64_t>(i) / a.cols()) + right);
    }
  }
}

std::vector<std::string> HfFolder::unused(const std::vector<Param>& params) const {
  std::unordered_set<const TensorEntry*> used;
  bool embedding = false;
  for (const Param& p : params) {
    used.insert(locate(p.file.tensor).entry);
    for (const char* name : embedding_names) embedding |= p.file.tensor == name;
  }
  std::vector<std::string> left;
  for (const std::string& name : names()) {
    const bool tied_copy = embedding && name == head_name;
    if (!used.count(locate(name).entry) && !is_buffer(name) && !tied_copy) left.push_back(name);
  }
  return left;
}

}  // namespace orthant
