// Helpers of the schedule tests: lists as text, and a search in messages.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "orthant/error.hpp"
#include "orthant/schedule.hpp"

namespace orthant {

/// "F3" for one chunk, "F1.3" (chunk, micro-batch) where `chunks`.
inline std::string text(const ActionList& list, bool chunks = false) {
  std::string out;
  for (const Action& a : list) {
    if (!out.empty()) out += ' ';
    out += static_cast<char>(a.act);
    if (chunks) out += std::to_string(a.chunk) + '.';
    out += std::to_string(a.micro);
  }
  return out;
}

/// Units of one chunk: "F3/0" (micro-batch, unit), "Gf3/0" and "Gb3/0", "R3/0+2" (two units from 0 on).
inline std::string units_text(const ActionList& list) {
  std::string out;
  for (const Action& a : list) {
    if (!out.empty()) out += ' ';
    out += static_cast<char>(a.act);
    if (a.act == Act::G) out += a.backward ? 'b' : 'f';
    out += std::to_string(a.micro) + '/' + std::to_string(a.unit);
    if (a.act == Act::R) out += '+' + std::to_string(a.units);
  }
  return out;
}

inline bool has_words(const std::string& s, const std::vector<std::string>& words) {
  return std::all_of(words.begin(), words.end(), [&](const auto& w) { return s.find(w) != std::string::npos; });
}
/// True when one of the messages has all the words.
inline bool mentions(const std::vector<std::string>& all, const std::vector<std::string>& words) {
  return std::any_of(all.begin(), all.end(), [&](const std::string& s) { return has_words(s, words); });
}

/// The message of the UsageError that make_pipeline ends with; empty when it does not.
inline std::string usage_error(const std::string& name, const ScheduleShape& shape, const std::string& csv = {}) {
  try {
    make_pipeline(name, shape, csv);
    return {};
  } catch (const UsageError& e) {
    return e.what();
  }
}

}  // namespace orthant
