// See sharding.hpp.
#include "optim/sharding.hpp"

#include <algorithm>
#include <numeric>

#include "orthant/schedule.hpp"

namespace orthant {

namespace {

Tensor flat(const Tensor& x) { return x.reshaped(1, x.size()); }

/// Copies `views` one after the other into `to` (1 row) from element `at` on; returns where it ended.
int64_t pack(Backend& be, const std::vector<Tensor>& views, const Tensor& to, int64_t at) {
  for (const Tensor& v : views) {
    if (v.size()) be.copy(to.col_range(at, v.size()), flat(v));
    at += v.size();
  }
  return at;
}

int64_t unpack(Backend& be, const Tensor& from, int64_t at, const std::vector<Tensor>& views, bool add) {
  for (const Tensor& v : views) {
    const Tensor part = from.col_range(at, v.size());
    if (v.size() && add) be.add(flat(v), part, flat(v));
    else if (v.size()) be.copy(flat(v), part);
    at += v.size();
  }
  return at;
}

}  // namespace

Range Sharding::rows_of(const Slice& s, int64_t rank) const {
  const Range own = store_.shard_rows(*s.param, rank);
  const int64_t begin = std::min(s.begin, own.size), end = std::min(s.end, own.size);
  return {own.begin + begin, end - begin};
}

Range Sharding::own_rows_of(const Slice& s) const {
  const int64_t rows = s.param->own.rows, begin = std::min(s.begin, rows);
  return {begin, std::min(s.end, rows) - begin};
}

std::vector<int64_t> Sharding::counts_of(const std::vector<Slice>& slices, int64_t lanes) const {
  const int64_t shards = ranks_of(slices).shards;
  std::vector<int64_t> counts(static_cast<size_t>(shards), 0);
  for (int64_t r = 0; r < shards; ++r)
    for (const Slice& s : slices) counts[static_cast<size_t>(r)] += lanes * rows_of(s, r).size * s.param->cols();
  return counts;
}

std::vector<LocalParam*> Sharding::all_params() {
  std::vector<LocalParam*> out;
  for (LocalParam& p : store_.all()) out.push_back(&p);
  return out;
}

/// After own rows were added to, in reproducible mode.
void Sharding::carry(const std::vector<Slice>& slices) {
  if (!ctx_.reproducible()) return;
  for (const Slice& s : slices) ctx_.be.exact_carry(s.param->own_grad_exact);
}

/// A parameter larger than `limit` is cut by rows, so that every rank sends a part of each bundle.
void Sharding::add_bundles(const std::vector<LocalParam*>& params, bool expert, int64_t limit, std::vector<std::vector<Slice>>& out) const {
  int64_t filled = 0;
  bool begun = false;
  const int64_t ranks = store_.data_ranks(expert).shards;
  for (LocalParam* p : params) {
    if (!p->trained() || p->expert() != expert) continue;
    const int64_t most = (p->rows() + ranks - 1) / ranks, width = ranks * std::max<int64_t>(1, p->cols());
    const int64_t step = std::max<int64_t>(1, limit / width);
    for (int64_t begin = 0; begin < most; begin += step) {
      const Slice s{p, begin, std::min(most, begin + step)};
      const int64_t n = (s.end - s.begin) * width;
      if (!begun || filled + n > limit) {
        out.emplace_back();
        filled = 0;
        begun = true;
      }
      out.back().push_back(s);
      filled += n;
    }
  }
}

std::vector<std::vector<Sharding::Slice>> Sharding::bundles(const std::vector<LocalParam*>& params, int64_t limit) const {
  std::vector<std::vector<Slice>> out;
  for (bool expert : {false, true}) add_bundles(params, expert, limit, out);
  return out;
}

std::vector<Tensor> Sharding::gradient_views(const Slice& s, int64_t rank) const {
  const Range r = rows_of(s, rank);
  const int64_t cols = s.param->cols();
  if (!ctx_.reproducible()) return {s.param->grad.row_range(r.begin, r.size)};
  const Tensor both = s.param->grad_exact.col_range(r.begin * cols, r.size * cols);
  return {both.row_range(0, 1), both.row_range(1, 1)};
}

std::vector<Tensor> Sharding::own_gradient_views(const Slice& s) const {
  const Range r = own_rows_of(s);
  const int64_t cols = s.param->cols();
  if (!ctx_.reproducible()) return {s.param->own_grad.row_range(r.begin, r.size)};
  const Tensor both = s.param->own_grad_exact.col_range(r.begin * cols, r.size * cols);
  return {both.row_range(0, 1), both.row_range(1, 1)};
}

void Sharding::land(std::deque<Flight>& flights, size_t at_most) {
  while (flights.size() > at_most) {
    Flight f = std::move(flights.front());
    flights.pop_front();
    f.pending.wait();
    if (f.after) f.after();
  }
}

void Sharding::sum(int64_t first, int64_t count) {
  const bool cut = store_.zero().cuts_state();
  std::vector<LocalParam*> params;
  for (int64_t u = first; u < first + count; ++u) {
    store_.open_gradients(u);  // a unit that made no gradient since the last R takes part with zeros
    for (LocalParam* p : store_.units()[static_cast<size_t>(u)].params) params.push_back(p);
  }
  store_.for_gradients(first, count, [&](const GradientSums& sums, const Tensor& t) {
    if (ctx_.reproducible()) ctx_.be.exact_carry(t);
    std::vector<Tensor> lanes;
    if (t.dense()) lanes.push_back(t);
    else
      for (int64_t l = 0; l < t.rows(); ++l) lanes.push_back(t.row_range(l, 1));
    for (const Tensor& lane : lanes) {
      for (AxisName axis : sums.model) ctx_.axes[axis].sum(lane, "gradients").wait();
      if (cut) continue;
      land(sums_, sums_in_flight);
      sums_.push_back({ctx_.axes[store_.data_ranks(sums.expert).shard].sum(lane, "gradients"), nullptr});
    }
    if (ctx_.reproducible() && cut) ctx_.be.exact_carry(t);  // else the sum is still under way
  });
  if (!cut) return;
  for (auto& slices : bundles(params, store_.zero().bucket)) sum_bundle(std::move(slices));
  for (int64_t u = first; u < first + count; ++u) store_.close_gradients(u);
}

void Sharding::sum_bundle(std::vector<Slice> slices) {
  land(sums_, sums_in_flight - 1);
  const std::vector<int64_t> counts = counts_of(slices, lanes());
  const Axis& shard = ctx_.axes[ranks_of(slices).shard];
  const Tensor whole = ctx_.be.alloc(gradient_type(), 1, std::accumulate(counts.begin(), counts.end(), int64_t{0}), MemoryKind::communication);
  int64_t at = 0;
  for (int64_t r = 0; r < shard.size(); ++r)
    for (const Slice& s : slices) at = pack(ctx_.be, gradient_views(s, r), whole, at);
  const Tensor mine = ctx_.be.alloc(gradient_type(), 1, counts[static_cast<size_t>(shard.rank())], MemoryKind::communication);
  // Where whole gradients stay, own rows of them become the sum; else own rows collect the sums of all micro-batches.
  const bool add = store_.zero().sums_every_micro();
  sums_.push_back({shard.scatter_sum_parts(whole, mine, counts, "gradients"), [this, slices = std::move(slices), mine, add] {
                     int64_t from = 0;
                     for (const Slice& s : slices) from = unpack(ctx_.be, mine, from, own_gradient_views(s), add);
                     carry(slices);
                   }});
}

void Sharding::finish_sums() {
  land(sums_, 0);
  if (ctx_.reproducible() && !store_.zero().cuts_state())
    for (LocalParam& p : store_.all())
      if (p.trained()) ctx_.be.exact_carry(p.own_grad_exact);
  if (store_.zero().cuts_state()) sum_replicas();
  sum_tie();
}

void Sharding::sum_replicas() {
  for (const auto& slices : bundles(all_params(), store_.zero().bucket)) {
    const Axis& replica = ctx_.axes[ranks_of(slices).replica];
    if (replica.size() == 1) continue;
    std::vector<Tensor> views;
    int64_t n = 0;
    for (const Slice& s : slices)
      for (const Tensor& v : own_gradient_views(s)) {
        views.push_back(v);
        n += v.size();
      }
    const Tensor buffer = ctx_.be.alloc(gradient_type(), 1, n, MemoryKind::communication);
    pack(ctx_.be, views, buffer, 0);
    replica.sum(buffer, "gradients over replicas").wait();
    unpack(ctx_.be, buffer, 0, views, false);
    carry(slices);
  }
}

namespace {

/// The tied weight of this rank, when another stage holds it too.
LocalParam* tied(Context& ctx, ParamStore& store) {
  if (ctx.axes[AxisName::tie].size() < 2) return nullptr;
  return &store.at("embedding.tokens.weight");
}

}  // namespace

void Sharding::sum_tie() {
  LocalParam* p = tied(ctx_, store_);
  if (!p) return;
  const Axis& tie = ctx_.axes[AxisName::tie];
  const Slice all{p, 0, p->own.rows};
  const std::vector<Tensor> views = own_gradient_views(all);
  const Tensor buffer = ctx_.be.alloc(gradient_type(), 1, lanes() * p->own.rows * p->cols(), MemoryKind::communication);
  if (p->copy) {
    pack(ctx_.be, views, buffer, 0);
    tie.send(buffer, 0, 0, "tied gradient").wait();
    return;
  }
  tie.receive(buffer, 1, 0, "tied gradient").wait();
  unpack(ctx_.be, buffer, 0, views, true);
  carry({all});
}

void Sharding::share_tied_weights() {
  LocalParam* p = tied(ctx_, store_);
  if (!p) return;
  const Axis& tie = ctx_.axes[AxisName::tie];
  const Tensor own = flat(p->own_weight);
  if (p->copy) tie.receive(own, 0, 1, "tied weight").wait();
  else tie.send(own, 1, 1, "tied weight").wait();
}

Sharding::Flight Sharding::gather_bundle(std::vector<Slice> slices, bool allocate) {
  const std::vector<int64_t> counts = counts_of(slices, 1);
  const Axis& shard = ctx_.axes[ranks_of(slices).shard];
  const Tensor mine = ctx_.be.alloc(ctx_.T, 1, counts[static_cast<size_t>(shard.rank())], MemoryKind::communication);
  const Tensor whole = ctx_.be.alloc(ctx_.T, 1, std::accumulate(counts.begin(), counts.end(), int64_t{0}), MemoryKind::communication);
  int64_t at = 0;
  for (const Slice& s : slices) {
    const Range own = own_rows_of(s);
    at = pack(ctx_.be, {s.param->own_weight.row_range(own.begin, own.size)}, mine, at);
  }
  Pending pending = shard.gather_parts(mine, whole, counts, "weights");
  return {std::move(pending), [this, slices = std::move(slices), mine, whole, allocate, shards = static_cast<int64_t>(shard.size())] {
            if (allocate)
              for (const Slice& s : slices)
                s.param->weight = ctx_.be.alloc(ctx_.T, s.param->rows(), s.param->cols(), MemoryKind::weights);
            int64_t from = 0;
            for (int64_t r = 0; r < shards; ++r)
              for (const Slice& s : slices) {
                const Range rows = rows_of(s, r);
                from = unpack(ctx_.be, whole, from, {s.param->weight.row_range(rows.begin, rows.size)}, false);
              }
          }};
}

void Sharding::gather(const std::vector<LocalParam*>& params) {
  gathers_.emplace_back();
  for (bool expert : {false, true}) {  // one unit, one call to each set of ranks
    std::vector<Slice> slices;
    for (LocalParam* p : params)
      if (p->trained() && p->expert() == expert) slices.push_back({p, 0, p->rows()});
    if (!slices.empty()) gathers_.back().push_back(gather_bundle(std::move(slices), true));
  }
}

void Sharding::need() {
  if (!store_.zero().gathers_weights()) return;
  ORTHANT_ENSURE(!gathers_.empty(), "weights are used without a gather");
  land(gathers_.front(), 0);
  gathers_.pop_front();
}

void Sharding::release(const std::vector<LocalParam*>& params) {
  if (!store_.zero().gathers_weights()) return;
  for (LocalParam* p : params)
    if (p->trained()) p->weight = Tensor();
}

void Sharding::publish() {
  share_tied_weights();
  const Zero& zero = store_.zero();
  if (!zero.cuts_state() || zero.gathers_weights()) return;
  std::deque<Flight> flights;
  for (auto& slices : bundles(all_params(), zero.bucket)) {
    if (ranks_of(slices).shards == 1) continue;
    land(flights, 1);
    flights.push_back(gather_bundle(std::move(slices), false));
  }
  land(flights, 0);
}

}  // namespace orthant
