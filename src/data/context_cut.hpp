// How a sequence is cut over the ranks of cp. Batches, attention and the planner all ask here.
#pragma once

#include <vector>

#include "orthant/layout.hpp"

namespace orthant {

/// `balanced` is what training uses: 2 cp chunks, rank i holds chunk i and chunk 2 cp - 1 - i, so that early places, which
/// see few keys, and late ones, which see many, come together. `in_order` (rank i holds part i of cp) is only there to
/// be compared with.
enum class ContextCut { in_order, balanced };

/// Places in a sequence of `sequence` tokens that rank `rank` of `cp` holds, in ascending runs; one run of all of them
/// for cp = 1. LogicError when the cut leaves a remainder (the deck's checks refuse such a sequence) or there is no such
/// rank.
std::vector<Range> context_runs(int64_t sequence, int64_t cp, int64_t rank, ContextCut cut = ContextCut::balanced);

/// Work of causal attention on a rank, when the sequence is `blocks` equal blocks: the pairs of a query block it holds
/// and a key block at or before it. For 16 blocks on cp 4 that is 10, 26, 42, 58 in order, and 34 each when balanced.
int64_t attention_work(int64_t blocks, int64_t cp, int64_t rank, ContextCut cut = ContextCut::balanced);

}  // namespace orthant
