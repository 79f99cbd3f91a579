// See preflight.hpp: which node is slow, and what is said of it. The rates are those of preflight_rates.cpp.
#include "train/preflight.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "orthant/error.hpp"
#include "support/agree.hpp"
#include "support/median.hpp"

namespace orthant {

namespace {

struct Quantity {
  const char *name, *unit;
  double NodeRates::*rate;
};
constexpr Quantity quantities[] = {{"GEMM", "GFLOP/s", &NodeRates::gemm},
                                   {"memory", "GB/s", &NodeRates::memory},
                                   {"all-reduce in the node", "GB/s", &NodeRates::inside},
                                   {"all-reduce with neighbours", "GB/s", &NodeRates::between}};
constexpr size_t few_nodes = 16, worst_nodes = 8;

std::string number(double x) { return x < 0 ? "-" : fmt::format("{:.3g}", x); }

std::string line(const std::string& name, const std::string& ranks, const std::vector<std::string>& rates) {
  std::string out = fmt::format("  {:<20} {:>5}", name, ranks);
  for (const std::string& r : rates) out += fmt::format(" {:>15}", r);
  return out + "\n";
}

}  // namespace

std::vector<NodeShare> compare_nodes(const std::vector<NodeRates>& rates) {
  std::vector<NodeShare> out;
  for (const Quantity& q : quantities) {
    std::map<int64_t, std::vector<double>> alike;  // a node with half the ranks is not slow for doing half the work
    for (const NodeRates& n : rates)
      if (n.*q.rate >= 0) alike[n.ranks].push_back(n.*q.rate);
    std::map<int64_t, double> references;
    for (const auto& [ranks, values] : alike)
      if (values.size() > 1) references[ranks] = values.size() == 2 ? std::max(values[0], values[1]) : median(values);
    for (size_t i = 0; i < rates.size(); ++i) {
      const auto reference = references.find(rates[i].ranks);
      const double rate = rates[i].*q.rate;
      if (rate < 0 || reference == references.end() || reference->second <= 0) continue;
      out.push_back({i, q.name, q.unit, rate, reference->second, alike[rates[i].ranks].size()});
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const NodeShare& a, const NodeShare& b) { return a.node < b.node; });
  return out;
}

std::vector<NodeShare> shares_below(std::vector<NodeShare> shares, double bound) {
  std::erase_if(shares, [bound](const NodeShare& s) { return s.share() >= bound; });
  std::stable_sort(shares.begin(), shares.end(),
                   [](const NodeShare& a, const NodeShare& b) { return a.share() < b.share(); });
  return shares;
}

std::string share_text(const std::vector<NodeRates>& rates, const NodeShare& s) {
  const std::string others =
      s.compared == 2 ? "the better of 2 nodes" : fmt::format("the median of {} nodes", s.compared);
  return fmt::format("{}: {} {} {}, {:.2f} x {} ({})", rates[s.node].host, s.quantity, number(s.rate), s.unit,
                     s.share(), others, number(s.reference));
}

std::string preflight_table(const std::vector<NodeRates>& rates, const std::vector<NodeShare>& shares) {
  std::string out = line("node", "ranks", {"GEMM GFLOP/s", "memory GB/s", "in node GB/s", "neighbour GB/s"});
  const auto row = [&](const NodeRates& n) {
    std::vector<std::string> words;
    for (const Quantity& q : quantities) words.push_back(number(n.*q.rate));
    out += line(n.host, std::to_string(n.ranks), words);
  };
  if (rates.size() <= few_nodes) {
    for (const NodeRates& n : rates) row(n);
    return out;
  }
  std::vector<std::string> words;
  for (const Quantity& q : quantities) {
    std::vector<double> known;
    for (const NodeRates& n : rates)
      if (n.*q.rate >= 0) known.push_back(n.*q.rate);
    words.push_back(known.empty() ? "-" : number(median(known)));
  }
  out += line(fmt::format("median of {}", rates.size()), "", words);
  std::set<size_t> shown;  // a node may be behind in several things
  for (const NodeShare& s : shares_below(shares, 1)) {
    if (shown.size() == worst_nodes) break;
    if (shown.insert(s.node).second) row(rates[s.node]);
  }
  return out +
         fmt::format("  ({} of {} nodes are shown: those that are furthest behind)\n", shown.size(), rates.size());
}

void preflight(MPI_Comm world, const PreflightSettings& settings) {
  int rank = 0;
  ORTHANT_MPI(MPI_Comm_rank(world, &rank));
  const auto begin = std::chrono::steady_clock::now();
  const Measured measured = measure_nodes(world, settings);
  const std::vector<NodeRates>& rates = measured.rates;
  collectively(world, [&] {
    if (rank != 0) return;
    const std::vector<NodeShare> shares = compare_nodes(rates);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::string text = fmt::format(
        "preflight {:.1f} s: products in {} on {}, a triad in the host's memory, all-reduce of the ranks of a "
        "node and of neighbouring nodes by {}\n",
        seconds, settings.tf32 ? "tf32" : name_of(settings.type), measured.backend, measured.transport);
    text += preflight_table(rates, shares);
    if (rates.size() == 1)
      text += "  one node: no link between nodes, and no other node to compare with\n";
    else if (shares.empty())
      text += "  no two nodes have as many ranks: none are compared\n";
    std::string slow, told;
    for (const NodeShare& s : shares_below(shares, slow_share)) {
      slow += "slow node: " + share_text(rates, s) + "\n";
      told += "orthant: slow node: " + share_text(rates, s) + "\n";
    }
    if (slow.empty() && !shares.empty()) text += fmt::format("  no node is below {} x the others\n", slow_share);
    std::fputs((text + slow).c_str(), stdout);
    std::fflush(stdout);
    std::fputs(told.c_str(), stderr);
    const std::vector<NodeShare> refused = shares_below(shares, settings.require);
    if (refused.empty()) return;
    std::set<std::string> hosts;
    for (const NodeShare& s : refused) hosts.insert(rates[s.node].host);
    const bool one = hosts.size() == 1;
    throw FaultError(fmt::format(
        "preflight: {} less than {} x the others, which --preflight-require {} refuses ({}{}); "
        "start again without {}",
        one ? "a node does" : fmt::format("{} nodes do", hosts.size()), settings.require, settings.require,
        share_text(rates, refused[0]), refused.size() > 1 ? "; more above" : "", one ? "it" : "them"));
  });
}

}  // namespace orthant
