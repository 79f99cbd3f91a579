// manifest.json: writing, reading, and comparing files with it.
#include "checkpoint/manifest.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/folders.hpp"
#include "orthant/error.hpp"

namespace orthant {

using Json = nlohmann::ordered_json;

static std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

int64_t Manifest::bytes() const {
  int64_t sum = 0;
  for (const ManifestFile& f : files) sum += f.bytes;
  return sum;
}

static const char* const own_checksum = "xxh64 of the rest";

static std::string checksum_of(const Json& json) {
  Json rest = json;
  rest.erase(own_checksum);
  const std::string text = rest.dump();
  return hex(XXH64(text.data(), text.size(), 0));
}

void write_manifest(const std::string& folder, const Manifest& manifest) {
  Json files = Json::object();
  for (const ManifestFile& f : manifest.files) files[f.name] = {{"bytes", f.bytes}, {"xxh64", hex(f.xxh64)}};
  Json json = {{"format", "orthant checkpoint"},  {"version", manifest_version},
               {"step", manifest.step},           {"sequence", manifest.sequence},
               {"ranks", manifest.ranks},         {"mesh", manifest.mesh},
               {"optimizer", manifest.optimizer}, {"files", files}};
  json[own_checksum] = checksum_of(json);
  write_file_durably(folder + "/" + manifest_name, json.dump(2) + "\n");
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + manifest_name;
  std::ifstream in(path);
  if (!in) throw DataError(path + ": not there, so this folder is no complete checkpoint");
  std::stringstream text;
  text << in.rdbuf();
  Manifest manifest;
  try {
    const Json json = Json::parse(text.str());
    if (json.at("format") != "orthant checkpoint") throw DataError(path + ": format is not \"orthant checkpoint\"");
    const int64_t version = json.at("version").get<int64_t>();
    if (version < 1 || version > manifest_version) {
      throw DataError(path + ": version " + std::to_string(version) + "; this program reads versions 1 to " +
                      std::to_string(manifest_version));
    }
    if (version >= 2 && json.at(own_checksum) != checksum_of(json)) {
      throw DataError(path + ": damaged: what it says has XXH64 " + checksum_of(json) + ", and it was written with " +
                      json.at(own_checksum).dump());
    }
    manifest.step = json.at("step").get<int64_t>();
    manifest.sequence = json.at("sequence").get<int64_t>();
    manifest.ranks = json.at("ranks").get<int>();
    manifest.mesh = json.at("mesh").get<std::string>();
    manifest.optimizer = json.at("optimizer").get<bool>();
    for (const auto& [name, entry] : json.at("files").items()) {
      const std::string digits = entry.at("xxh64").get<std::string>();
      if (digits.size() != 16 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
        throw DataError(path + ": xxh64 of " + name + " is not 16 hexadecimal digits");
      }
      if (name.empty() || name.find('/') != std::string::npos) {
        throw DataError(path + ": \"" + name + "\" is not a plain file name");
      }
      manifest.files.push_back({name, entry.at("bytes").get<int64_t>(), std::stoull(digits, nullptr, 16)});
    }
  } catch (const Json::exception& e) {
    throw DataError(path + ": not a manifest: " + e.what());
  }
  if (manifest.files.empty()) throw DataError(path + ": names no files");
  return manifest;
}

ManifestFile hash_file(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  const Descriptor file(path, O_RDONLY);
  const std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> state(XXH64_createState(), XXH64_freeState);
  XXH64_reset(state.get(), 0);
  std::vector<char> block(size_t{4} << 20);
  ManifestFile found{name, 0, 0};
  for (;;) {
    const ssize_t got = ::read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw DataError(path + ": cannot be read: " + std::strerror(errno));
    if (got == 0) break;
    XXH64_update(state.get(), block.data(), static_cast<size_t>(got));
    found.bytes += got;
  }
  found.xxh64 = XXH64_digest(state.get());
  return found;
}

std::string problem_of(const std::string& folder, const ManifestFile& file, bool checksum) {
  struct stat info {};
  if (::stat((folder + "/" + file.name).c_str(), &info) != 0) {
    return file.name + ": " + std::strerror(errno);
  }
  if (info.st_size != file.bytes) {
    return file.name + ": has " + std::to_string(info.st_size) + " bytes, the manifest says " +
           std::to_string(file.bytes);
  }
  if (!checksum) return "";
  try {
    const uint64_t found = hash_file(folder, file.name).xxh64;
    if (found != file.xxh64) {
      return file.name + ": has XXH64 " + hex(found) + ", the manifest says " + hex(file.xxh64);
    }
  } catch (const DataError& e) {
    return e.what();
  }
  return "";
}

}  // namespace orthant
