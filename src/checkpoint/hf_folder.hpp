// A Hugging Face model folder: one safetensors file or several with an index, seen as one set of tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors.hpp"
#include "orthant/param.hpp"

namespace orthant {

/// Opens `model.safetensors`, or `model.safetensors.index.json` with every file it lists. DataError: neither or both
/// are there; a listed file is missing, or lies outside the folder; a tensor is in two files, in another file than
/// the index says, in the index but in no file, or in a file but not in the index.
///
/// Tensor names are taken with or without the prefix of the base model (`transformer.` for GPT-2, `model.` for the
/// others): files saved from the base model alone lack it.
class HfFolder {
 public:
  explicit HfFolder(const std::string& folder);

  const std::string& path() const { return folder_; }
  bool has(const std::string& name) const { return locate(name).file != nullptr; }
  /// DataError if no file holds it.
  const TensorEntry& entry(const std::string& name) const;
  /// All names as the files spell them, sorted.
  std::vector<std::string> names() const;
  /// Dtype of each tensor of the files that a parameter uses, by FileTensor::tensor (so that an export can repeat
  /// it).
  std::map<std::string, std::string> dtypes(const std::vector<Param>& params) const;

  /// A piece of a parameter, dense and row-major. DataError, naming parameter, file tensor and both shapes, if the
  /// file's tensor is not the one the parameter is part of.
  void read(const Param& param, const Piece& piece, float* out) const;
  void read(const Param& param, const Piece& piece, double* out) const;

  /// Checks all of the model against the folder before any weight is read: every parameter there (up to 10 missing
  /// ones are named), of the right shape and of a dtype that weights may have; each row of a file tensor used exactly
  /// once; a head beside tied embeddings equal to them. DataError.
  void check(const std::vector<Param>& params) const;
  /// Tensors that no parameter uses, but for buffers (masks, rotary tables) and the copy of a tied head.
  std::vector<std::string> unused(const std::vector<Param>& params) const;

 private:
  struct Place {
    const SafetensorsFile* file = nullptr;
    const TensorEntry* entry = nullptr;
  };
  Place locate(const std::string& name) const;
  Place checked(const Param& param) const;
  void open_index(const std::string& path);
  void add_file(const std::string& path);
  void check_tied_head(const std::vector<Param>& params) const;
  template <class T>
  void read_as(const Param& param, const Piece& piece, T* out) const;

  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, size_t> file_of_;
};

}  // namespace orthant
