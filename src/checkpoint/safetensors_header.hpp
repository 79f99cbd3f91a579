// The JSON header of a safetensors file, event by event: no tree is built, so its depth and size cost nothing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/safetensors.hpp"

namespace orthant {

/// What the header says, each entry checked on its own: dtype known, shape non-negative, byte range ordered and as
/// long as dtype and shape need. Duplicate names are refused. Ranges are not compared with each other or with the
/// file. Throws DataError opening with `path`.
struct SafetensorsHeader {
  std::vector<TensorEntry> entries;
  std::map<std::string, std::string> metadata;
};
SafetensorsHeader parse_safetensors_header(const char* text, size_t length, const std::string& path);

}  // namespace orthant
