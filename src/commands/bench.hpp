// The measurements of `orthant bench`, one file each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orthant/command.hpp"

namespace orthant {

/// `steps` timed training steps on random tokens after `warm` others; rank 0 prints one JSON line. Collective.
int bench_step(const CommandArgs& args, const std::string& deck, const std::vector<std::string>& overrides, int64_t steps,
               int64_t warm);

/// Writes and reads the state that the deck trains, `repeat` times; rank 0 prints one JSON line. Collective.
/// UsageError if its folder is there already, DataError if a write or a read fails.
int bench_io(const CommandArgs& args, const std::string& deck, const std::vector<std::string>& overrides, int64_t repeat);

/// For `orthant bench io --help`: what is timed, and what becomes of caches.
extern const char* const bench_io_notes;

}  // namespace orthant
