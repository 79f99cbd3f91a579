// What a run has seen of its sources: the table for people, and how much a new phase will see again.
#pragma once

#include <string>
#include <vector>

#include "train/data_record.hpp"

namespace orthant {

/// What a stream drew, or will draw, from one source.
struct Draw {
  int64_t sequence = 0;       ///< tokens of a sample
  int64_t samples = 0;        ///< drawn
  int64_t order_samples = 0;  ///< that the order was laid out for: it fixes how epochs are mixed
  int64_t tokens() const { return samples * sequence; }
};

/// Tokens of a phase that its source has shown before, earlier in the run or earlier in the phase.
struct Repetition {
  int64_t least = 0;    ///< whatever the orders are
  double expected = 0;  ///< if the orders of the phases have nothing to do with each other, as their seeds make them
};
/// `tokens`: of the source's training part, > 0.
Repetition repetition(int64_t tokens, const std::vector<Draw>& before, const Draw& now);

/// One line a source for the start of the record's last phase, which will draw `planned` samples of each source.
std::vector<std::string> repetition_lines(const DataRecord& record, const std::vector<int64_t>& planned);

/// Phases, sources and tokens as a table; ends with a newline. Sums of tokens are those of the run.
std::string ledger_text(const DataRecord& record);

}  // namespace orthant
