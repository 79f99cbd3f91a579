// Schedules in CSV files.
#pragma once

#include "orthant/schedule.hpp"

namespace orthant {

/// Fills split, vee and lists of `out` from the text of the file out.name; its shape says what the rows may name.
/// UsageError naming file and line. The lists still have to pass the checker.
void read_schedule_csv(const std::string& text, Pipeline& out);

}  // namespace orthant
