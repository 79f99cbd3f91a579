// See goodput_advice.hpp.
#include "train/goodput_advice.hpp"

#include <algorithm>
#include <cmath>

namespace orthant {

namespace {

void add(StopMeans& sums, const Stop& s) {
  ++sums.count;
  if (!s.over) return;
  ++sums.over;
  sums.detection += s.detection;
  sums.gap += s.gap;
  sums.start += s.start;
  sums.load += s.load;
  sums.lost += s.lost;
}

void divide(StopMeans& sums) {
  if (sums.over == 0) return;
  for (double* v : {&sums.detection, &sums.gap, &sums.start, &sums.load, &sums.lost}) *v /= static_cast<double>(sums.over);
}

}  // namespace

StopTable table_of(const std::vector<Stop>& stops) {
  StopTable out;
  for (const Stop& s : stops) {
    add(out.kinds[static_cast<size_t>(s.kind)], s);
    add(s.kind == StopKind::planned ? out.planned : out.unplanned, s);
    if (s.kind != StopKind::planned && s.kind != StopKind::refused) ++out.failures;
  }
  for (StopMeans& m : out.kinds) divide(m);
  divide(out.planned);
  divide(out.unplanned);
  return out;
}

double young_interval(double save, double mtbf) { return std::sqrt(2 * save * mtbf); }

double daly_interval(double save, double mtbf) {
  if (save >= 2 * mtbf) return mtbf;
  const double x = save / (2 * mtbf);
  return young_interval(save, mtbf) * (1 + std::sqrt(x) / 3 + x / 9) - save;
}

double expected_share(double interval, double save, double mtbf, double down) {
  return interval / (mtbf * std::exp(down / mtbf) * std::expm1((interval + save) / mtbf));
}

std::optional<double> measured_mtbf(const GoodputLedger& ledger, const TimeBins& bins, int64_t failures) {
  if (failures == 0) return std::nullopt;
  return ledger.node_seconds(bins) / static_cast<double>(failures * ledger.nodes());
}

double failures_per_1000_node_hours(const GoodputLedger& ledger, const TimeBins& bins, int64_t failures) {
  const double hours = ledger.node_seconds(bins) / 3600;
  return hours > 0 ? 1000 * static_cast<double>(failures) / hours : 0;
}

std::optional<Advice> advise(const GoodputLedger& ledger, const TimeBins& bins, int64_t steps, std::optional<double> mtbf,
                             std::optional<double> save) {
  const StopTable table = table_of(ledger.stops());
  Advice a;
  a.measured_mtbf = !mtbf;
  a.measured_save = !save;
  const std::optional<double> m = mtbf ? mtbf : measured_mtbf(ledger, bins, table.failures);
  if (!m || *m <= 0) return std::nullopt;
  if (!save && ledger.saves() == 0) return std::nullopt;
  a.mtbf = *m;
  a.save = save ? *save : ledger.mean_stall();
  a.young = young_interval(a.save, a.mtbf);
  a.daly = daly_interval(a.save, a.mtbf);
  a.interval = std::max(a.daly, save ? *save : ledger.mean_durable());  // one save is in flight at a time
  if (steps > 0 && bins.trained > 0) {
    const auto in_steps = [&](double seconds) {
      return std::max<int64_t>(1, std::llround(seconds * static_cast<double>(steps) / bins.trained));
    };
    a.young_steps = in_steps(a.young);
    a.daly_steps = in_steps(a.daly);
    a.interval_steps = in_steps(a.interval);
  }
  if (a.interval > 0) a.expected = expected_share(a.interval, a.save, a.mtbf, table.unplanned.down());
  return a;
}

}  // namespace orthant
