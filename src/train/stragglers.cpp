// See stragglers.hpp.
#include "train/stragglers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "support/agree.hpp"

namespace orthant {

namespace {

/// Median of sorted numbers without one of them: the others are those before its place and those behind it.
double median_without(const std::vector<double>& sorted, double x) {
  const auto place = static_cast<size_t>(std::lower_bound(sorted.begin(), sorted.end(), x) - sorted.begin());
  const size_t n = sorted.size() - 1;
  const auto at = [&](size_t i) { return sorted[i < place ? i : i + 1]; };
  return n % 2 == 1 ? at(n / 2) : (at(n / 2 - 1) + at(n / 2)) / 2;
}

}  // namespace

std::vector<SlowRank> slow_ranks(const std::vector<double>& seconds, const std::vector<int64_t>& stage, double factor) {
  std::map<int64_t, std::vector<size_t>> stages;
  for (size_t r = 0; r < seconds.size(); ++r) stages[stage[r]].push_back(r);
  std::vector<SlowRank> out;
  for (const auto& [at, ranks] : stages) {
    if (ranks.size() < 2) continue;
    std::vector<double> sorted;
    for (size_t r : ranks) sorted.push_back(seconds[r]);
    std::sort(sorted.begin(), sorted.end());
    for (size_t r : ranks) {
      const double middle = median_without(sorted, seconds[r]);
      if (middle > 0 && seconds[r] >= factor * middle) out.push_back({static_cast<int>(r), seconds[r] / middle});
    }
  }
  std::sort(out.begin(), out.end(), [](const SlowRank& a, const SlowRank& b) { return a.ratio > b.ratio; });
  return out;
}

Stragglers::Stragglers(const Mesh& mesh, std::vector<std::string> names)
    : comm_(mesh.cart()), lead_(mesh.rank() == 0), names_(std::move(names)) {
  if (!lead_) return;
  for (int r = 0; r < mesh.ranks(); ++r) stage_.push_back(coordinates_of(mesh.shape(), r).pp);
  windows_.assign(stage_.size(), 0);
}

std::vector<std::string> Stragglers::step(double seconds) {
  seconds_ += seconds;
  if (++steps_ < window) return {};
  std::vector<double> all(stage_.size());
  ORTHANT_MPI(MPI_Gather(&seconds_, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, 0, comm_));
  steps_ = 0;
  seconds_ = 0;
  if (!lead_) return {};
  const std::vector<SlowRank> compared = slow_ranks(all, stage_, 0);
  slowest_ = compared.empty() ? SlowRank{} : compared[0];
  std::vector<std::string> lines;
  std::vector<int> now(windows_.size(), 0);
  for (const SlowRank& s : compared) {
    if (s.ratio < factor) break;
    const auto r = static_cast<size_t>(s.rank);
    now[r] = windows_[r] + 1;
    if (now[r] == 2)
      lines.push_back(fmt::format("slow      {}: {:.2f} x the computing time of the other ranks of its stage over the "
                                  "last {} steps",
                                  names_[r], s.ratio, 2 * window));
  }
  windows_ = std::move(now);
  return lines;
}

}  // namespace orthant
