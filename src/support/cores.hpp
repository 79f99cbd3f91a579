// The cores a process may run on.
#pragma once

#include <string>
#include <vector>

namespace orthant {

/// Numbers of the cores, rising; empty where the system does not say.
std::vector<int> cores_allowed();

/// "0-3, 7"
std::string ranges_text(const std::vector<int>& numbers);

}  // namespace orthant
