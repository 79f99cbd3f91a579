// See dispatch.hpp.
#include "layers/dispatch.hpp"

#include <algorithm>
#include <numeric>

namespace orthant {

namespace {

Tensor indices(Context& ctx, int64_t rows, int64_t cols) {
  return ctx.be.alloc(DType::i32, rows, cols, MemoryKind::activations);
}

Tensor upload(Context& ctx, const std::vector<int32_t>& values, int64_t rows, int64_t cols) {
  Tensor t = indices(ctx, rows, cols);
  Host<int32_t> h(ctx.be, t);
  std::copy(values.begin(), values.end(), h.data());
  return t;
}

/// n things over `parts`, the first ones taking what is left over.
std::vector<int64_t> evenly(int64_t n, int64_t parts) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < parts; ++i) out.push_back(n / parts + (i < n % parts ? 1 : 0));
  return out;
}

/// Memory for the worst case, messages of even routing.
Dispatch plan_shapes(Context& ctx, const RoutingShape& s, int64_t most) {
  Dispatch d;
  d.rows = s.ranks == 1 ? std::min(s.tokens * s.top_k, most) : s.tokens * s.top_k;
  d.received = most;
  d.token = indices(ctx, d.rows, 1);
  d.pick = indices(ctx, d.rows, 1);
  d.slot = indices(ctx, s.tokens, s.top_k);
  d.send_rows = d.receive_rows = evenly(d.rows, s.ranks);
  int64_t at = 0;
  for (int64_t n : evenly(most, s.local_experts())) {
    d.runs.push_back({at, n});
    if (ctx.reproducible()) d.segments.push_back({static_cast<int64_t>(d.runs.size()) - 1, d.runs.back()});
    at += n;
  }
  return d;
}

/// What is sent lives until it has arrived, on a transport that only counts too: plans count it.
Leaving travel(const Axis& ep, const char* op, const Tensor& sent, const std::vector<int64_t>& send,
               const Tensor& received, const std::vector<int64_t>& receive, const char* site) {
  auto call = std::make_shared<Pending>(ep.exchange_as(op, sent, send, received, receive, site));
  return Leaving(received, Pending([call, sent] { call->wait(); }, [call] { return call->done(); }));
}

Tensor permuted(Context& ctx, const Tensor& x, const Tensor& index) {
  Tensor out = ctx.be.alloc(x.dtype(), index.rows(), x.cols(), MemoryKind::activations);
  ctx.be.gather_rows(x, index, out);
  return out;
}

}  // namespace

namespace {

/// [ranks][local experts][blocks]: what each rank says it will send here; `counts` [experts][blocks] is what goes out.
std::vector<int64_t> announced_counts(Context& ctx, const Axis& ep, const RoutingShape& s, const std::vector<int64_t>& counts) {
  if (s.ranks == 1) return counts;  // also where axes only count, as in a command on one rank
  const int64_t cells = s.local_experts() * s.blocks();
  Tensor sent = ctx.workspace(DType::i64, s.ranks, cells), announced = ctx.workspace(DType::i64, s.ranks, cells);
  {
    Host<int64_t> h(ctx.be, sent);
    std::copy(counts.begin(), counts.end(), h.data());
  }
  ep.exchange_control(sent, announced);
  Host<int64_t> h(ctx.be, announced);
  return std::vector<int64_t>(h.data(), h.data() + announced.size());
}

}  // namespace

Dispatch plan_dispatch(Context& ctx, const Axis& ep, const RoutingShape& s, const Tensor& chosen, int64_t most) {
  const bool sorted = s.ranks == 1 || s.local_experts() == 1;
  if (ctx.be.shapes_only()) {
    Dispatch d = plan_shapes(ctx, s, most);
    if (!sorted) d.regroup = indices(ctx, most, 1), d.ungroup = indices(ctx, most, 1);
    return d;
  }
  Departure out;
  {
    Host<int32_t> h(ctx.be, chosen);
    out = plan_departure(h.data(), s);
  }
  const Arrival in = plan_arrival(announced_counts(ctx, ep, s, out.counts).data(), s);
  Dispatch d;
  d.rows = static_cast<int64_t>(out.token.size());
  d.received = static_cast<int64_t>(in.regroup.size());
  ORTHANT_ENSURE(
      d.received <= most,
      std::to_string(d.received) + " rows come to the experts of this rank, planned were " + std::to_string(most));
  d.off_rank = d.rows - out.send_rows[static_cast<size_t>(ep.rank())];
  d.token = upload(ctx, out.token, d.rows, 1);
  d.pick = upload(ctx, out.pick, d.rows, 1);
  d.slot = upload(ctx, out.slot, s.tokens, s.top_k);
  if (!sorted && d.received > 0) {
    d.regroup = upload(ctx, in.regroup, d.received, 1);
    d.ungroup = upload(ctx, in.ungroup, d.received, 1);
  }
  d.send_rows = std::move(out.send_rows);
  d.receive_rows = in.receive_rows;
  d.runs = in.runs;
  if (ctx.reproducible()) d.segments = in.segments;
  return d;
}

Leaving send_rows(const Axis& ep, Context& ctx, const Dispatch& d, const char* op, const Tensor& rows,
                  const char* site) {
  if (ep.size() == 1) return Leaving(rows, Pending());
  Tensor received = ctx.be.alloc(rows.dtype(), d.received, rows.cols(), MemoryKind::activations);
  return travel(ep, op, rows, d.send_rows, received, d.receive_rows, site);
}

Tensor regroup(Context& ctx, const Dispatch& d, const Tensor& arrived) {
  return d.regrouped() ? permuted(ctx, arrived, d.regroup) : arrived;
}

Leaving return_rows(const Axis& ep, Context& ctx, const Dispatch& d, const char* op, const Tensor& rows,
                    const char* site) {
  if (ep.size() == 1) return Leaving(rows, Pending());
  const Tensor sent = d.regrouped() ? permuted(ctx, rows, d.ungroup) : rows;
  Tensor back = ctx.be.alloc(rows.dtype(), d.rows, rows.cols(), MemoryKind::activations);
  return travel(ep, op, sent, d.receive_rows, back, d.send_rows, site);
}

Tensor rows_of_tokens(Context& ctx, const Dispatch& d, const Tensor& x) { return permuted(ctx, x, d.token); }

Tensor tokens_of_rows(Context& ctx, const Dispatch& d, const Tensor& rows) {
  Tensor out = ctx.be.alloc(rows.dtype(), d.slot.rows(), rows.cols(), MemoryKind::activations);
  ctx.be.combine_rows(rows, d.slot, out);
  return out;
}

Tensor rows_of_picks(Context& ctx, const Dispatch& d, const Tensor& x) {
  return permuted(ctx, x.reshaped(x.size(), 1), d.pick);
}

Tensor picks_of_rows(Context& ctx, const Dispatch& d, const Tensor& rows) {
  return permuted(ctx, rows, d.slot.reshaped(d.slot.size(), 1)).reshaped(d.slot.rows(), d.slot.cols());
}

}  // namespace orthant
