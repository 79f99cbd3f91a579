// Why a layout that somebody may think of is none of this program's.
#pragma once

#include <optional>
#include <string>

namespace orthant {

/// The reason for a refusal of `key` = `axis` (key as "layout.batch", axis "cp"), for the dims that a deck may name
/// and for those it may not (layout.hidden, layout.head_dim, …). nullopt where there is nothing to say but what is
/// allowed.
std::optional<std::string> layout_reason(const std::string& key, const std::string& axis);

}  // namespace orthant
