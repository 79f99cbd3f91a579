// Which rows travel between the ranks of ep, from the choices of the routers: integers on the host, no tensors.
//
// A row is one pick of one token. The sender sorts its rows by (expert, token), which is also by owner, as the
// experts of a rank are consecutive. They arrive sorted by (source, expert, token), and are regrouped to (expert,
// source, token): one run of rows for each expert of the receiver.
#pragma once

#include <cstdint>
#include <vector>

#include "orthant/layout.hpp"

namespace orthant {

struct RoutingShape {
  int64_t tokens = 0, top_k = 1, experts = 1;
  int64_t ranks = 1;       ///< of ep; each owns experts / ranks
  int64_t block_rows = 0;  ///< tokens of a canonical block, for which rows are counted apart; 0: all are one block
  int64_t blocks() const { return block_rows > 0 && tokens > 0 ? (tokens + block_rows - 1) / block_rows : 1; }
  int64_t local_experts() const { return experts / ranks; }
};

/// The sender's side.
struct Departure {
  std::vector<int32_t> token;      ///< of each row
  std::vector<int32_t> pick;       ///< of each row: token * top_k + place among the token's choices
  std::vector<int32_t> slot;       ///< [tokens, top_k]: the row of each pick, -1 where it was dropped
  std::vector<int64_t> send_rows;  ///< to each rank
  std::vector<int64_t> counts;     ///< rows of [experts][blocks]; rank r gets its experts' part
};
/// chosen [tokens, top_k], -1 = dropped. LogicError for a number that is no expert.
Departure plan_departure(const int32_t* chosen, const RoutingShape& shape);

/// Rows of one expert that come from one canonical block of one rank, in the regrouped order.
struct Segment {
  int64_t expert = 0;  ///< of this rank, from 0
  Range rows;
};

/// The receiver's side.
struct Arrival {
  std::vector<int64_t> receive_rows;  ///< from each rank
  std::vector<int32_t> regroup;       ///< [received]: the row that comes to each place of the regrouped order
  std::vector<int32_t> ungroup;       ///< its inverse
  std::vector<Range> runs;            ///< rows of each local expert in the regrouped order, empty ones too
  std::vector<Segment> segments;      ///< of every (expert, rank, block) with rows, in that order
};
/// counts [ranks][local experts][blocks]: what each rank sends to this one.
Arrival plan_arrival(const int64_t* counts, const RoutingShape& shape);

/// Rows that a rank may receive at most when each of `ranks` sends the picks of `tokens` tokens.
int64_t most_received(const RoutingShape& shape);

/// Picks of one sequence that an expert accepts: ceil(length * top_k / experts * factor), at least 1, at most length.
int64_t expert_capacity(int64_t length, int64_t top_k, int64_t experts, double factor);

/// Consecutive positions of a rank's tokens: rows [rows.begin, rows.begin + rows.size), the first at place `start` of
/// every sequence.
struct TokenRun {
  int64_t start = 0;
  Range rows;
};
/// The runs of positions among token rows [begin, begin + count) of a micro-batch whose positions go through `runs`.
std::vector<TokenRun> token_runs(const std::vector<Range>& runs, int64_t sequences, int64_t begin, int64_t count);

/// Picks of each [sequence][expert] among the rows of `run`.
std::vector<int64_t> count_run(const int32_t* chosen, const RoutingShape& shape, const TokenRun& run,
                               int64_t sequences);
/// Sets the picks of `run` beyond `capacity` to -1, in order of position. `before` [sequence][expert]: picks at
/// earlier positions, anywhere. Returns how many were dropped.
int64_t drop_beyond(int32_t* chosen, const RoutingShape& shape, const TokenRun& run, int64_t sequences,
                    int64_t capacity, std::vector<int64_t> before);

}  // namespace orthant
