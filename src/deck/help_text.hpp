// The deck reference in words.
#pragma once

#include <string>
#include <vector>

namespace orthant {

/// Text of `orthant help ARGS…`: `deck`, `deck SECTION`, `deck SECTION.KEY`, `megatron`, or nothing for an overview.
/// Throws UsageError, agreed on all ranks, for an unknown topic or section.
std::string help_text(const std::vector<std::string>& args);

}  // namespace orthant
