// See routing.hpp.
#include "layers/routing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "orthant/error.hpp"

namespace orthant {

Departure plan_departure(const int32_t* chosen, const RoutingShape& s) {
  ORTHANT_ENSURE(s.ranks > 0 && s.experts % s.ranks == 0, "experts must be a multiple of the ranks that hold them");
  const int64_t picks = s.tokens * s.top_k, blocks = s.blocks();
  ORTHANT_ENSURE(picks <= std::numeric_limits<int32_t>::max(), "more picks in a micro-batch than 32 bits count");
  const int64_t block_rows = s.block_rows > 0 ? s.block_rows : std::max<int64_t>(1, s.tokens);
  Departure d;
  d.counts.assign(static_cast<size_t>(s.experts * blocks), 0);
  d.slot.assign(static_cast<size_t>(picks), -1);
  d.send_rows.assign(static_cast<size_t>(s.ranks), 0);
  for (int64_t p = 0; p < picks; ++p) {
    const int64_t e = chosen[p];
    ORTHANT_ENSURE(e >= -1 && e < s.experts, "a router chose expert " + std::to_string(e));
    if (e < 0) continue;
    ++d.counts[static_cast<size_t>(e * blocks + p / s.top_k / block_rows)];
  }
  std::vector<int64_t> next(static_cast<size_t>(s.experts));
  int64_t rows = 0;
  for (int64_t e = 0; e < s.experts; ++e) {
    next[static_cast<size_t>(e)] = rows;
    const auto first = d.counts.begin() + e * blocks;
    const int64_t n = std::accumulate(first, first + blocks, int64_t{0});
    d.send_rows[static_cast<size_t>(e / s.local_experts())] += n;
    rows += n;
  }
  d.token.resize(static_cast<size_t>(rows));
  d.pick.resize(static_cast<size_t>(rows));
  for (int64_t p = 0; p < picks; ++p) {
    if (chosen[p] < 0) continue;
    const int64_t row = next[static_cast<size_t>(chosen[p])]++;
    d.token[static_cast<size_t>(row)] = static_cast<int32_t>(p / s.top_k);
    d.pick[static_cast<size_t>(row)] = static_cast<int32_t>(p);
    d.slot[static_cast<size_t>(p)] = static_cast<int32_t>(row);
  }
  return d;
}

Arrival plan_arrival(const int64_t* counts, const RoutingShape& s) {
  const int64_t local = s.local_experts(), blocks = s.blocks(), cells = local * blocks;
  const auto n_ranks = static_cast<size_t>(s.ranks);
  Arrival a;
  a.receive_rows.resize(n_ranks);
  std::vector<int64_t> next(n_ranks);  // the next row of each source, as it arrived
  int64_t rows = 0;
  for (int64_t r = 0; r < s.ranks; ++r) {
    for (int64_t c = 0; c < cells; ++c)
      ORTHANT_ENSURE(counts[r * cells + c] >= 0, "a rank announces less than no rows");
    const int64_t n = std::accumulate(counts + r * cells, counts + (r + 1) * cells, int64_t{0});
    next[static_cast<size_t>(r)] = rows;
    a.receive_rows[static_cast<size_t>(r)] = n;
    rows += n;
  }
  ORTHANT_ENSURE(rows <= std::numeric_limits<int32_t>::max(), "more rows for a rank's experts than 32 bits count");
  a.regroup.resize(static_cast<size_t>(rows));
  a.ungroup.resize(static_cast<size_t>(rows));
  int64_t at = 0;
  for (int64_t e = 0; e < local; ++e) {
    a.runs.push_back({at, 0});
    for (int64_t r = 0; r < s.ranks; ++r)
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t n = counts[r * cells + e * blocks + b];
        if (n == 0) continue;
        a.segments.push_back({e, {at, n}});
        for (int64_t i = 0; i < n; ++i, ++at) {
          const int64_t from = next[static_cast<size_t>(r)]++;
          a.regroup[static_cast<size_t>(at)] = static_cast<int32_t>(from);
          a.ungroup[static_cast<size_t>(from)] = static_cast<int32_t>(at);
        }
      }
    a.runs.back().size = at - a.runs.back().begin;
  }
  return a;
}

int64_t most_received(const RoutingShape& s) { return s.ranks * s.tokens * std::min(s.top_k, s.local_experts()); }

int64_t expert_capacity(int64_t length, int64_t top_k, int64_t experts, double factor) {
  const double wanted = std::ceil(static_cast<double>(length * top_k) / static_cast<double>(experts) * factor);
  if (!(wanted < static_cast<double>(length))) return length;
  return std::max<int64_t>(1, static_cast<int64_t>(wanted));
}

std::vector<TokenRun> token_runs(const std::vector<Range>& runs, int64_t sequences, int64_t begin, int64_t count) {
  std::vector<TokenRun> out;
  int64_t row = 0;  // of the micro-batch
  for (const Range& run : runs) {
    const int64_t end = row + run.size * sequences;
    const int64_t from = std::max(row, begin), to = std::min(end, begin + count);
    if (from < to) {
      ORTHANT_ENSURE((from - row) % sequences == 0, "a rank's tokens begin inside a position");
      out.push_back({run.begin + (from - row) / sequences, {from - begin, to - from}});
    }
    row = end;
  }
  return out;
}

std::vector<int64_t> count_run(const int32_t* chosen, const RoutingShape& s, const TokenRun& run, int64_t sequences) {
  std::vector<int64_t> counts(static_cast<size_t>(sequences * s.experts), 0);
  for (int64_t t = run.rows.begin; t < run.rows.begin + run.rows.size; ++t)
    for (int64_t j = 0; j < s.top_k; ++j)
      if (const int64_t e = chosen[t * s.top_k + j]; e >= 0)
        ++counts[static_cast<size_t>(t % sequences * s.experts + e)];
  return counts;
}

int64_t drop_beyond(int32_t* chosen, const RoutingShape& s, const TokenRun& run, int64_t sequences, int64_t capacity,
                    std::vector<int64_t> before) {
  int64_t dropped = 0;
  for (int64_t t = run.rows.begin; t < run.rows.begin + run.rows.size; ++t)
    for (int64_t j = 0; j < s.top_k; ++j) {
      int32_t& e = chosen[t * s.top_k + j];
      if (e < 0 || before[static_cast<size_t>(t % sequences * s.experts + e)]++ < capacity) continue;
      e = -1;
      ++dropped;
    }
  return dropped;
}

}  // namespace orthant
