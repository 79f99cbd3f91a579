// What a user may have meant by a key that does not exist.
#pragma once

#include <string>
#include <vector>

namespace orthant {

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`.
std::size_t edit_distance(const std::string& a, const std::string& b);
/// The full name of the known key nearest to `name` ("optimiser.lr", "model.lr", "lr"): a key of that name in
/// another section first, then by spelling. Never empty.
std::string nearest_key(const std::string& name);
/// The candidate nearest to `name` by spelling; `candidates` is not empty.
std::string nearest_of(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace orthant
