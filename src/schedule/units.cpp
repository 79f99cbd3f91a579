// Refines a stage's list of whole chunks into units, and puts in the gathers of weights and the sums of gradients, so
// that prefetch and overlap are data as well.
#include "orthant/error.hpp"
#include "orthant/schedule.hpp"

namespace orthant {

namespace {

/// The R of one pass over a chunk's units, from the last to the first: whole units until they reach the bucket.
class Bucket {
 public:
  Bucket(const std::vector<int64_t>& elements, int64_t least) : elements_(elements), least_(least) {}
  /// After the gradients of `done.unit` are complete.
  void add(const Action& done, ActionList& out) {
    held_ += elements_[static_cast<size_t>(done.unit)];
    ++units_;
    if (held_ < least_ && done.unit > 0) return;
    out.push_back({Act::R, done.chunk, done.micro, done.unit, units_});
    held_ = units_ = 0;
  }

 private:
  const std::vector<int64_t>& elements_;
  int64_t least_, held_ = 0, units_ = 0;
};

/// Whole chunks to units and sums; no gathers yet.
ActionList units_and_sums(const ActionList& list, Act completes, const SumPlan& plan) {
  std::vector<size_t> last(plan.unit_elements.size(), list.size());  // where a chunk's gradients are complete
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& a = list[i];
    ORTHANT_ENSURE(a.act == Act::F || a.act == Act::B || a.act == Act::W, "a list of units is refined once more");
    ORTHANT_ENSURE(a.unit == -1, "a list of units is refined once more");
    ORTHANT_ENSURE(a.chunk >= 0 && a.chunk < static_cast<int64_t>(plan.unit_elements.size()) &&
                       !plan.unit_elements[static_cast<size_t>(a.chunk)].empty(),
                   "no units are known of chunk " + std::to_string(a.chunk));
    if (a.act == completes) last[static_cast<size_t>(a.chunk)] = i;
  }
  ActionList out;
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& whole = list[i];
    const auto chunk = static_cast<size_t>(whole.chunk);
    const auto units = static_cast<int64_t>(plan.unit_elements[chunk].size());
    const bool sums = whole.act == completes && (plan.every_micro || i == last[chunk]);
    Bucket bucket(plan.unit_elements[chunk], plan.bucket);
    for (int64_t k = 0; k < units; ++k) {
      Action a = whole;
      a.unit = whole.act == Act::F ? k : units - 1 - k;
      out.push_back(a);
      if (sums) bucket.add(a, out);
    }
  }
  return out;
}

/// A G for each use of a unit's weights, in front of the use before, so that one gather is always under way. W needs
/// the input and the gradient of a unit, not its weights.
ActionList with_gathers(const ActionList& list) {
  const auto uses = [](const Action& a) { return a.act == Act::F || a.act == Act::B; };
  const auto gather = [](const Action& a) { return Action{Act::G, a.chunk, a.micro, a.unit, 1, a.act == Act::B}; };
  ActionList out;
  size_t ahead = 0;  // first action whose gather is not in the list yet
  const auto gather_next = [&] {
    while (ahead < list.size() && !uses(list[ahead])) ++ahead;
    if (ahead < list.size()) out.push_back(gather(list[ahead++]));
  };
  gather_next();
  for (const Action& a : list) {
    if (uses(a)) gather_next();
    out.push_back(a);
  }
  return out;
}

}  // namespace

ActionList with_units(const ActionList& list, bool split, const SumPlan& plan) {
  const ActionList refined = units_and_sums(list, split ? Act::W : Act::B, plan);
  return plan.gather ? with_gathers(refined) : refined;
}

}  // namespace orthant
