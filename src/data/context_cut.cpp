// See context_cut.hpp.
#include "data/context_cut.hpp"

#include "orthant/error.hpp"

namespace orthant {

std::vector<Range> context_runs(int64_t sequence, int64_t cp, int64_t rank, ContextCut cut) {
  ORTHANT_ENSURE(cp >= 1 && rank >= 0 && rank < cp,
                 "rank " + std::to_string(rank) + " of cp = " + std::to_string(cp));
  if (cp == 1) return {{0, sequence}};
  const int64_t chunks = cut == ContextCut::balanced ? 2 * cp : cp, size = sequence / chunks;
  ORTHANT_ENSURE(size > 0 && sequence % chunks == 0, "a sequence of " + std::to_string(sequence) + " tokens in " +
                                                         std::to_string(chunks) + " chunks for cp = " +
                                                         std::to_string(cp));
  if (cut == ContextCut::in_order) return {{rank * size, size}};
  return {{rank * size, size}, {(chunks - 1 - rank) * size, size}};
}

int64_t attention_work(int64_t blocks, int64_t cp, int64_t rank, ContextCut cut) {
  int64_t pairs = 0;
  for (const Range& run : context_runs(blocks, cp, rank, cut))
    for (int64_t q = run.begin; q < run.begin + run.size; ++q) pairs += q + 1;
  return pairs;
}

}  // namespace orthant
