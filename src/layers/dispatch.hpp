// Rows on their way to the experts of other ranks and back, over ep.
//
//   home    x [tokens, width] -> gather by token -> rows sorted by (owner, expert, token)     -> exchange
//   expert  rows by (source, expert, token)      -> regroup -> one run of rows for each expert -> products
//   back    the same steps reversed; at home each token adds up the rows of its picks
//
// Backward sends dy out and dx back the same ways: each way is the transpose of the other.
#pragma once

#include <string>

#include "layers/routing.hpp"
#include "orthant/edges.hpp"

namespace orthant {

/// One micro-batch's rows in one layer.
struct Dispatch {
  Tensor token, pick;       ///< i32 [rows, 1], see Departure
  Tensor slot;              ///< i32 [tokens, top_k]
  Tensor regroup, ungroup;  ///< i32 [received, 1]; none where rows arrive as the experts want them
  std::vector<int64_t> send_rows, receive_rows;
  std::vector<Range> runs;        ///< of each local expert, in `received` rows
  std::vector<Segment> segments;  ///< in reproducible mode
  int64_t rows = 0, received = 0;
  int64_t off_rank = 0;  ///< rows whose owner is another rank
  bool regrouped() const { return static_cast<bool>(regroup); }
};

/// Tells the other ranks of `ep` how many rows will come, and hears it. `chosen` i32 [tokens, top_k], -1 = dropped.
/// No more than `most` rows may come: memory was planned for that many. Collective over ep.
///
/// Where only shapes flow, the memory is that of the worst case, `most` rows for this rank, and the traffic that of
/// even routing.
Dispatch plan_dispatch(Context& ctx, const Axis& ep, const RoutingShape& shape, const Tensor& chosen, int64_t most);

/// Rows out: `rows` [rows, width], sorted for their owners -> [received, width] as they arrive. Counted as `op`.
Leaving send_rows(const Axis& ep, Context& ctx, const Dispatch& d, const char* op, const Tensor& rows,
                  const char* site);
/// Arrived rows in the order of the experts.
Tensor regroup(Context& ctx, const Dispatch& d, const Tensor& arrived);
/// Rows back: `rows` [received, width] in the order of the experts -> [rows, width] as they were sent.
Leaving return_rows(const Axis& ep, Context& ctx, const Dispatch& d, const char* op, const Tensor& rows,
                    const char* site);

/// The row of each pick of x [tokens, width] -> [rows, width].
Tensor rows_of_tokens(Context& ctx, const Dispatch& d, const Tensor& x);
/// Each token's sum over its picks: rows [rows, width] -> [tokens, width].
Tensor tokens_of_rows(Context& ctx, const Dispatch& d, const Tensor& rows);
/// One number a pick, [tokens, top_k] -> [rows, 1], and back, 0 where the pick was dropped.
Tensor rows_of_picks(Context& ctx, const Dispatch& d, const Tensor& x);
Tensor picks_of_rows(Context& ctx, const Dispatch& d, const Tensor& rows);

}  // namespace orthant
