// Do the experts of a model fit the mesh? Over one stage etp x ep x edp = tp x cp x dp.
#include <limits>

#include "deck/check.hpp"
#include "deck/keys_mesh.hpp"
#include "deck/keys_model.hpp"
#include "deck/model_mixtures.hpp"

namespace orthant {

namespace {

std::string text(int64_t x) { return std::to_string(x); }

// Saturates: a product that does not fit is no number of ranks anyway.
int64_t product(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<int64_t>::max() : out;
}

}  // namespace

std::vector<std::string> check_experts(const Deck& deck, const ModelConfig& m, int64_t ranks) {
  std::vector<std::string> out;
  const int64_t tp = deck[keys::mesh::tp], cp = deck[keys::mesh::cp], ep = deck[keys::mesh::ep],
                etp = deck[keys::mesh::etp], dp = data_ranks(deck, ranks);
  if (ep < 1 || etp < 1) {
    out.push_back("mesh: ep = " + text(ep) + ", etp = " + text(etp) + ": both are at least 1");
    return out;
  }
  if (tp < 1 || cp < 1) return out;  // check_mesh says so
  const int64_t inner = product(cp, dp), whole = product(tp, inner);
  const std::string rule = dp < 1 ? "with etp = tp, ep divides cp x dp; with etp = 1, ep divides tp x cp x dp"
                                  : "with etp = tp, ep divides cp x dp = " + text(cp) + " x " + text(dp) + " = " +
                                        text(inner) + "; with etp = 1, ep divides tp x cp x dp = " + text(tp) +
                                        " x " + text(cp) + " x " + text(dp) + " = " + text(whole);
  const int64_t count = m.moe.experts;
  if (count < 1) {
    if (has_mixtures(m.family)) return out;  // their number is missing or wrong, which is said elsewhere
    if (ep > 1)
      out.push_back("mesh.ep = " + text(ep) +
                    ": the model has no experts, so ep must be 1 (with model.moe.experts: " + rule + ")");
    if (etp > 1) out.push_back("mesh.etp = " + text(etp) + ": the model has no experts, so etp must be 1");
    return out;
  }
  if (count % ep != 0) out.push_back("mesh.ep = " + text(ep) + " does not divide model.moe.experts = " + text(count));
  if (etp != 1 && etp != tp)
    out.push_back("mesh.etp = " + text(etp) + ": must be 1 or the same as mesh.tp = " + text(tp));
  else if (dp >= 1 && (etp == tp ? inner : whole) % ep != 0)
    out.push_back("mesh.ep = " + text(ep) + " (etp = " + text(etp) + ") does not fit the mesh: " + rule +
                  "; over one stage etp x ep x edp = tp x cp x dp");
  if (m.moe.ffn > 0 && m.moe.ffn % etp != 0)
    out.push_back("mesh.etp = " + text(etp) + " does not divide model.moe.ffn = " + text(m.moe.ffn));
  if (tp > 1 && !deck[keys::mesh::sequence_parallel])
    out.push_back("mesh.tp = " + text(tp) + " with experts needs mesh.sequence_parallel = true");
  return out;
}

}  // namespace orthant
