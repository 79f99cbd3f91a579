// manifest.json: what makes a folder of files a checkpoint. It is written last, so whatever it names is complete.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

/// Version 1 had no checksum of the manifest itself.
inline constexpr int manifest_version = 2;
inline constexpr const char* manifest_name = "manifest.json";

struct ManifestFile {
  std::string name;  ///< plain name inside the folder
  int64_t bytes = 0;
  uint64_t xxh64 = 0;  ///< seed 0, over the whole file; 16 hexadecimal digits in the manifest
};

struct Manifest {
  int64_t step = 0;
  /// Counts the saves of a checkpoints folder. "Newest" is the one saved last, which need not be the highest step: a
  /// run that went back to an earlier checkpoint has younger ones with lower steps.
  int64_t sequence = 0;
  int ranks = 1;
  std::string mesh;
  bool optimizer = true;
  std::vector<ManifestFile> files;
  int64_t bytes() const;
};

/// Writes `folder`/manifest.json, with the XXH64 of what it says (as compact JSON, without that key), and waits until
/// it is on disk.
void write_manifest(const std::string& folder, const Manifest& manifest);

/// DataError if it is missing, is not JSON, lacks a field, does not have its own checksum, or has a version this
/// program does not know.
Manifest read_manifest(const std::string& folder);

/// Size and XXH64 of a file, read in blocks. DataError if it cannot be read.
ManifestFile hash_file(const std::string& folder, const std::string& name);

/// What is wrong with one file of the manifest: missing, another size, and (with `checksum`) other content. Empty =
/// good.
std::string problem_of(const std::string& folder, const ManifestFile& file, bool checksum);

}  // namespace orthant
