// See data_ledger.hpp.
#include "train/data_ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "data/source_order.hpp"

namespace orthant {

namespace {

/// Passes that are shuffled together, and so may show a token several times before another one comes at all.
int64_t mixed_epochs(const EpochPlan& plan) { return plan.last_apart ? plan.epochs - 1 : plan.epochs; }

/// Share of the source that a draw is expected to leave unseen.
double unseen_share(int64_t tokens, const Draw& d) {
  const EpochPlan plan = plan_epochs(tokens, d.sequence, d.order_samples);
  const auto mixed = static_cast<double>(mixed_epochs(plan));
  const double drawn = static_cast<double>(d.tokens()) / (mixed * static_cast<double>(tokens));
  return drawn >= 1 ? 0 : std::pow(1 - drawn, mixed);
}

/// Different tokens that a draw has seen at the very least.
int64_t least_seen(int64_t tokens, const Draw& d) {
  const int64_t mixed = mixed_epochs(plan_epochs(tokens, d.sequence, d.order_samples));
  return std::min(tokens, (d.tokens() + mixed - 1) / mixed);
}

double share_of(int64_t part, int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

}  // namespace

Repetition repetition(int64_t tokens, const std::vector<Draw>& before, const Draw& now) {
  int64_t seen = 0;
  double unseen = 1;
  for (const Draw& d : before) {
    seen = std::max(seen, least_seen(tokens, d));
    unseen *= unseen_share(tokens, d);
  }
  const double fresh = static_cast<double>(tokens) * unseen * (1 - unseen_share(tokens, now));
  const int64_t least = std::max<int64_t>(0, now.tokens() - (tokens - seen));
  return {least, std::max(static_cast<double>(least), static_cast<double>(now.tokens()) - fresh)};
}

std::vector<std::string> repetition_lines(const DataRecord& record, const std::vector<int64_t>& planned) {
  std::vector<std::string> lines;
  const PhaseRecord& now = record.phases.back();
  for (size_t k = 0; k < record.sources.size(); ++k) {
    const SourceRecord& source = record.sources[k];
    std::vector<Draw> before;
    int64_t seen = 0;
    for (size_t p = 0; p + 1 < record.phases.size(); ++p) {
      const PhaseRecord& phase = record.phases[p];
      before.push_back({phase.sequence, phase.drawn[k], phase.order_samples[k]});
      seen += before.back().tokens();
    }
    const Draw next{now.sequence, planned[k], now.order_samples[k]};
    const Repetition again = repetition(source.training_tokens, before, next);
    lines.push_back(
        fmt::format("  {}: earlier phases drew {} tokens ({:.2f} epochs of {}), this one will draw {} ({:.2f} "
                    "epochs): seen again "
                    "at least {}, about {:.0f} expected",
                    source.prefix, seen, share_of(seen, source.training_tokens), source.training_tokens,
                    next.tokens(), share_of(next.tokens(), source.training_tokens), again.least, again.expected));
  }
  return lines;
}

std::string ledger_text(const DataRecord& record) {
  size_t width = 6;
  for (const SourceRecord& s : record.sources) width = std::max(width, s.prefix.size());
  std::string out = fmt::format("  {:<5}  {:>8}  {:>10}  {:>10}  {:>12}  {:<{}}  {:>14}  {:>7}\n", "phase",
                                "sequence", "seed", "first step", "samples", "source", width, "tokens", "epochs");
  int64_t all = 0;
  for (size_t p = 0; p < record.phases.size(); ++p) {
    const PhaseRecord& phase = record.phases[p];
    for (size_t k = 0; k < record.sources.size(); ++k) {
      const int64_t tokens = phase.drawn[k] * phase.sequence;
      out += k == 0 ? fmt::format("  {:<5}  {:>8}  {:>10}  {:>10}  {:>12}  ", p, phase.sequence,
                                  record.seed_of(static_cast<int64_t>(p)), phase.first_step + 1, phase.next_sample)
                    : std::string(57, ' ');
      out += fmt::format("{:<{}}  {:>14}  {:>7.2f}\n", record.sources[k].prefix, width, tokens,
                         share_of(tokens, record.sources[k].training_tokens));
      all += tokens;
    }
    if (phase.skipped > 0) {
      out += fmt::format("         {} of these samples were passed over after rollbacks (guard.skip_data)\n", phase.skipped);
      all -= phase.skipped * phase.sequence;
    }
    for (const WeightChange& c : phase.changes)
      out +=
          fmt::format("         data.weights from sample {} on: {}\n", c.first_sample,
                      c.weights.empty() ? "in proportion to tokens" : fmt::format("{}", fmt::join(c.weights, ", ")));
  }
  return out + fmt::format("  {:<{}}  {:>14}\n", "all", width + 55, all);
}

}  // namespace orthant
