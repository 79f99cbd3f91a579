// See run_costs.hpp.
#include "train/run_costs.hpp"

#include <algorithm>

#include "deck/all_keys.hpp"
#include "mesh/expected_traffic.hpp"
#include "support/agree.hpp"

namespace orthant {

RunCosts::RunCosts(const Mesh& mesh, Session& session, Timers& timers) : mesh_(mesh), session_(session), timers_(timers) {
  session_.axes->traffic().clear();
  if (!session_.plan.deck[keys::log::trace]) return;
  ORTHANT_MPI(MPI_Barrier(mesh_.cart()));  // time 0 on all ranks, whatever their clocks count from
  trace_.emplace(Trace::now_ns());
  session_.axes->traffic().trace = timers_.trace = &*trace_;
}

RunCosts::~RunCosts() { end_trace(); }

void RunCosts::end_trace() {
  if (trace_) session_.axes->traffic().trace = timers_.trace = nullptr;
}

void RunCosts::begin_step(int64_t step) {
  if (trace_) trace_->begin_step(step);
}

StepCosts RunCosts::step(const StepResult& r) {
  ++steps_;
  const RunPlan& plan = session_.plan;
  if (plan.sleep.on) trained_.off_rank += uniform_rows(traffic_plan(plan));  // routing is even where nothing is computed
  else trained_.add(r.router);

  Traffic& traffic = session_.axes->traffic();
  const double data = traffic.take_seconds(AxisName::dp) + traffic.take_seconds(AxisName::shard) + traffic.take_seconds(AxisName::replica);
  const double experts = traffic.take_seconds(AxisName::edp_shard) + traffic.take_seconds(AxisName::edp_replica);
  double sums[6] = {traffic.take_seconds(AxisName::tp) + traffic.take_seconds(AxisName::tp_rep), traffic.take_seconds(AxisName::cp),
                    traffic.take_seconds(AxisName::pp) + traffic.take_seconds(AxisName::tie), data + experts, traffic.take_seconds(AxisName::ep), r.busy_s};
  double most[2] = {static_cast<double>(session_.backend->account().total_peak()), r.span_s};
  double sum[6] = {}, largest[2] = {};
  ORTHANT_MPI(MPI_Reduce(sums, sum, 6, MPI_DOUBLE, MPI_SUM, 0, mesh_.cart()));
  ORTHANT_MPI(MPI_Reduce(most, largest, 2, MPI_DOUBLE, MPI_MAX, 0, mesh_.cart()));
  StepCosts out;
  out.compute = std::max(0.0, r.busy_s - sums[0] - sums[1] - sums[4]);
  const AxisName axes[5] = {AxisName::tp, AxisName::cp, AxisName::pp, AxisName::dp, AxisName::ep};
  double under_way[5] = {};
  for (int n = 0; n < axis_names; ++n)
    for (int i = 0; i < 5; ++i)
      if (public_axis(static_cast<AxisName>(n)) == axes[i]) under_way[i] += traffic.take_under_way(static_cast<AxisName>(n));
  std::vector<AxisCosts::Axis> of_axes;
  for (int i = 0; i < 5; ++i) {
    if (mesh_.size(axes[i]) == 1) continue;
    out.exposed.emplace_back(name_of(axes[i]), sum[i] / mesh_.ranks());
    of_axes.push_back({axes[i], sum[i] / mesh_.ranks(), under_way[i]});
  }
  axis_costs_.step(of_axes);
  out.memory = largest[0];
  if (plan.mesh.pp > 1 && largest[1] > 0) out.bubble = 1 - sum[5] / mesh_.ranks() / largest[1];
  return out;
}

void RunCosts::write(RunFolder* folder, Console& console) {
  const RunPlan& plan = session_.plan;
  const TrafficRows routed{trained_.off_rank, trained_.kept, evaluated_.off_rank, evaluated_.kept};
  const std::string traffic = traffic_report(mesh_, plan, session_.axes->traffic(), steps_, evals_ * plan.deck[keys::log::eval_steps], routed);
  const std::string timers = timers_report(mesh_, timers_, steps_);
  std::string trace;
  if (trace_) {
    end_trace();
    trace = Trace::file(texts_of_ranks(mesh_.cart(), trace_->events(mesh_.rank(), mesh_.where())));
  }
  if (mesh_.rank() == 0)
    if (const std::string waits = axis_costs_.text(plan); !waits.empty()) console.line(waits);
  collectively(mesh_.cart(), [&] {
    if (!folder) return;
    folder->write("traffic.json", traffic);
    folder->write("timers.txt", timers);
    if (trace_) folder->write("trace.json", trace);
  });
}

}  // namespace orthant
