// The bytes of a step or a validation pass, three times: by closed form, counted on shapes, and counted on a real
// mesh.
#pragma once

#include "mesh/expected_traffic.hpp"
#include "plan_kit.hpp"

namespace orthant::kit {

struct Setting {
  Keys keys;
  int64_t ranks = 1;
};

/// 8 sequences of 16 tokens in micro-batches of 2.
inline Setting setting(const std::string& name, const Keys& keys, int64_t ranks) {
  return {family(name) + Keys{"batch.global=8", "batch.micro=2"} + keys, ranks};
}
inline RunPlan plan_of(const Setting& s) { return kit::plan_of(s.keys, s.ranks); }

using Entries = std::map<std::pair<AxisName, std::string>, Traffic::Entry>;

/// A step on shapes as rank `at`.
inline Entries counted(const RunPlan& plan, const Coordinates& at) {
  ShapeRun run(plan, at);
  run.session.axes->traffic().clear();
  run.step();
  return run.session.axes->traffic().entries();
}

inline TrafficTable without_zeros(const TrafficTable& t) {
  TrafficTable out;
  for (const auto& [key, bytes] : t)
    if (bytes != 0) out[key] = bytes;
  return out;
}

/// Sum over the ranks of the mesh of what `entries(rank)` counted.
inline TrafficTable over_ranks(const RunPlan& plan, const std::function<Entries(const Coordinates&)>& entries) {
  std::map<std::pair<std::pair<AxisName, std::string>, int64_t>, int64_t> scaled;  // by axis, operation, ranks
  for (int64_t r = 0; r < plan.mesh.ranks(); ++r)
    for (const auto& [key, e] : entries(coordinates_of(plan.mesh, r))) scaled[{key, e.ranks}] += e.scaled_bytes;
  TrafficTable out;
  for (const auto& [key, bytes] : scaled) {
    EXPECT_EQ(bytes % key.second, 0);
    out[key.first] += bytes / key.second;
  }
  return without_zeros(out);
}

inline TrafficTable expected_step(const RunPlan& p) { return without_zeros(expected_step_traffic(traffic_plan(p))); }
inline TrafficTable both(TrafficTable a, const TrafficTable& b) {
  for (const auto& [key, bytes] : b) a[key] += bytes;
  return a;
}

/// The same sum for what each rank of MPI_COMM_WORLD counted itself.
inline TrafficTable over_world(const Entries& mine) {
  static const char* const operations[] = {"all_gather", "all_reduce",     "exchange", "exchange_weights",
                                           "broadcast",  "reduce_scatter", "shift"};
  size_t known = 0;
  TrafficTable out;
  for (int axis = 0; axis < axis_names; ++axis)
    for (const char* op : operations) {
      const auto found = mine.find({static_cast<AxisName>(axis), op});
      known += found != mine.end();
      int64_t scaled = found == mine.end() ? 0 : found->second.scaled_bytes,
              ranks = found == mine.end() ? 1 : found->second.ranks;
      MPI_Allreduce(MPI_IN_PLACE, &scaled, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
      MPI_Allreduce(MPI_IN_PLACE, &ranks, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
      EXPECT_EQ(scaled % ranks, 0);
      out[{static_cast<AxisName>(axis), op}] = scaled / ranks;
    }
  EXPECT_EQ(known, mine.size()) << "an operation that the list lacks";
  return without_zeros(out);
}

inline void expect_equal(const TrafficTable& a, const TrafficTable& b) {
  for (const TrafficTable* t : {&a, &b})
    for (const auto& [key, bytes] : *t) {
      const int64_t x = a.count(key) ? a.at(key) : 0, y = b.count(key) ? b.at(key) : 0;
      EXPECT_EQ(x, y) << name_of(key.first) << " " << key.second;
    }
}

inline const std::vector<Keys> zeros = {{"zero.stage=0"}, {"zero.stage=1"},
                                        {"zero.stage=2"}, {"zero.stage=2", "zero.accumulate=full"},
                                        {"zero.stage=3"}, {"zero.stage=3", "zero.accumulate=full"}};

/// Picks of experts in one pass over a global batch, in all mixture layers.
inline int64_t picks(const RunPlan& p) {
  return p.global_batch() * p.sequence() * p.model.moe.top_k * p.model.mixture_layers();
}
inline TrafficTable evaluated(const RunPlan& p, int64_t off_rank, int64_t kept) {
  return both(expected_eval_traffic(traffic_plan(p)), routed_traffic(traffic_plan(p), off_rank, kept, false));
}

/// Counted on shapes, a step sends what its plan foretells.
inline void expect_planned_step(const Setting& s) {
  SCOPED_TRACE(text(s.keys));
  const RunPlan plan = plan_of(s);
  const TrafficTable table = without_zeros(planned_step_traffic(traffic_plan(plan)));
  EXPECT_EQ(table.empty(), s.ranks == 1);
  EXPECT_EQ(table.count({AxisName::ep, "exchange"}), plan.mesh.ep > 1);
  expect_equal(over_ranks(plan, [&](const Coordinates& at) { return counted(plan, at); }), table);
}

/// The same of a validation pass. With recompute it is no other.
inline void expect_planned_validation(const Setting& s) {
  const RunPlan plan = plan_of(s);
  if (plan.recompute != Recompute::none) return;
  SCOPED_TRACE(text(s.keys));
  const TrafficTable table = over_ranks(plan, [&](const Coordinates& at) {
    Session session(plan, at, false);
    session.axes->traffic().clear();
    Sharding sharding(session.ctx, *session.store);
    Timers timers;
    Runner(session, sharding, timers)
        .run(
            session.forward_actions, [&](int64_t) { return blank_batch(session.ctx, plan.micro(), plan.sequence()); },
            false);
    return session.axes->traffic().entries();
  });
  expect_equal(table, without_zeros(evaluated(plan, uniform_rows(traffic_plan(plan)), picks(plan))));
}

/// Each rank of MPI_COMM_WORLD sends in a step what it counts on shapes; nothing on another number of ranks.
inline void expect_planned_bytes(const Setting& s) {
  if (s.ranks != world_size()) return;
  SCOPED_TRACE(text(s.keys));
  Trainer t(MPI_COMM_WORLD, plan_of(s));
  t.session.axes->traffic().clear();
  EXPECT_FALSE(t.step().skipped);
  const Entries real = t.session.axes->traffic().entries(),
                planned = counted(t.plan, coordinates_of(t.plan.mesh, t.mesh.rank()));
  EXPECT_EQ(real.size(), planned.size());
  for (const auto& [key, e] : planned) {
    const Traffic::Entry sent = real.count(key) ? real.at(key) : Traffic::Entry{};
    EXPECT_EQ(sent.calls, e.calls) << name_of(key.first) << " " << key.second;
    EXPECT_EQ(sent.scaled_bytes, e.scaled_bytes) << name_of(key.first) << " " << key.second;
    EXPECT_EQ(sent.ranks, e.ranks);
  }
}

}  // namespace orthant::kit
