// JSON as model folders hold it, read without mercy: a name given twice, deep nesting or broken UTF-8 is an error.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace orthant {

/// The whole file; DataError names the file if it is absent, unreadable or larger than `limit` bytes.
std::string read_small_file(const std::string& path, int64_t limit = 100'000'000);

/// Parses one JSON object. `where` (a file name) opens every message. DataError: not JSON, not an object, the same
/// name twice in one object, nesting deeper than 32, invalid UTF-8, text after the object.
nlohmann::json parse_json_object(const std::string& text, const std::string& where);

/// Writes `text` under a temporary name in the same folder, syncs it and renames it over `path`: a reader sees the
/// old file or the whole new one. DataError if the folder cannot be written.
void write_file_atomically(const std::string& path, const std::string& text);

/// Makes a rename in `folder` durable. DataError if the folder cannot be opened or synced.
void sync_folder(const std::string& folder);

/// The folder part of a path, "." if it has none.
std::string folder_of(const std::string& path);

}  // namespace orthant
