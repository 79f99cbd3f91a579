// Does the mesh fit the ranks, and if not, which mesh would?
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "deck/check.hpp"
#include "deck/keys_mesh.hpp"
#include "deck/keys_model.hpp"

namespace orthant {

namespace {

struct Factors {
  int64_t tp = 1, cp = 1, pp = 1, dp = 1;
};

std::string text(int64_t x) { return std::to_string(x); }

// Saturates: a product that does not fit is no number of ranks anyway.
int64_t product(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<int64_t>::max() : out;
}

Factors factors(const Deck& deck) {
  return {deck[keys::mesh::tp], deck[keys::mesh::cp], deck[keys::mesh::pp], deck[keys::mesh::dp]};
}

bool positive(const Factors& f) { return f.tp >= 1 && f.cp >= 1 && f.pp >= 1 && f.dp >= 0; }

int64_t experts(const Deck& deck) { return deck.get_or(keys::moe::experts, int64_t{0}); }

std::vector<std::string> check_experts(const Deck& deck, const Factors& f) {
  std::vector<std::string> out;
  const int64_t ep = deck[keys::mesh::ep], etp = deck[keys::mesh::etp], count = experts(deck);
  if (ep < 1 || etp < 1) {
    out.push_back("mesh: ep = " + text(ep) + ", etp = " + text(etp) + ": both are at least 1");
    return out;
  }
  const int64_t inner = product(f.cp, f.dp), whole = product(f.tp, inner);
  const std::string rule = "with etp = tp, ep divides cp x dp = " + text(f.cp) + " x " + text(f.dp) + " = " +
                           text(inner) + "; with etp = 1, ep divides tp x cp x dp = " + text(f.tp) + " x " +
                           text(f.cp) + " x " + text(f.dp) + " = " + text(whole);
  if (count == 0) {
    if (ep > 1)
      out.push_back("mesh.ep = " + text(ep) +
                    ": the model has no experts, so ep must be 1 (with model.moe.experts: " + rule + ")");
    if (etp > 1) out.push_back("mesh.etp = " + text(etp) + ": the model has no experts, so etp must be 1");
    return out;
  }
  if (count % ep != 0) out.push_back("mesh.ep = " + text(ep) + " does not divide model.moe.experts = " + text(count));
  if (etp != 1 && etp != f.tp)
    out.push_back("mesh.etp = " + text(etp) + ": must be 1 or the same as mesh.tp = " + text(f.tp));
  else if (f.dp >= 1 && (etp == f.tp ? inner : whole) % ep != 0)
    out.push_back("mesh.ep = " + text(ep) + " (etp = " + text(etp) + ") does not fit the mesh: " + rule +
                  "; over one stage etp x ep x edp = tp x cp x dp");
  if (deck.has(keys::moe::ffn) && deck[keys::moe::ffn] % etp != 0)
    out.push_back("mesh.etp = " + text(etp) + " does not divide model.moe.ffn = " + text(deck[keys::moe::ffn]));
  if (f.tp > 1 && !deck[keys::mesh::sequence_parallel])
    out.push_back("mesh.tp = " + text(f.tp) + " with experts needs mesh.sequence_parallel = true");
  return out;
}

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= n / d; ++d)
    if (n % d == 0) {
      out.push_back(d);
      if (d != n / d) out.push_back(n / d);
    }
  std::sort(out.begin(), out.end());
  return out;
}

Deck with_mesh(const Deck& deck, const Factors& f) {
  Deck out = deck;
  out.set(keys::mesh::tp, f.tp);
  out.set(keys::mesh::cp, f.cp);
  out.set(keys::mesh::pp, f.pp);
  out.set(keys::mesh::dp, f.dp);
  if (experts(deck) == 0) {
    out.set(keys::mesh::ep, int64_t{1});
    out.set(keys::mesh::etp, int64_t{1});
  }
  return out;
}

/// No rule of this deck is broken on mesh `f` (rules on sizes that config.json will give are left out).
bool legal(const Deck& deck, const Factors& f, std::size_t features_missing) {
  const Deck candidate = with_mesh(deck, f);
  if (!check_experts(candidate, f).empty() || not_built(candidate).size() > features_missing) return false;
  std::vector<std::string> unused;
  return check_sizes(candidate, model_config(candidate, unused)).empty();
}

/// The legal mesh of `ranks` ranks nearest to `asked`: how far tp, cp and pp have to move counts most, dp least.
std::optional<Factors> nearest_mesh(const Deck& deck, Factors asked, int64_t ranks) {
  asked = {std::max<int64_t>(asked.tp, 1), std::max<int64_t>(asked.cp, 1), std::max<int64_t>(asked.pp, 1), asked.dp};
  // What is missing whatever the mesh is must not stand in the way of a suggestion.
  const std::size_t features_missing = not_built(with_mesh(deck, {1, 1, 1, ranks})).size();
  const auto away = [](int64_t a, int64_t b) {
    return std::fabs(std::log(static_cast<double>(a) / static_cast<double>(b)));
  };
  std::vector<std::pair<double, Factors>> meshes;
  for (const auto tp : divisors(ranks))
    for (const auto cp : divisors(ranks / tp))
      for (const auto pp : divisors(ranks / tp / cp)) {
        const Factors f{tp, cp, pp, ranks / tp / cp / pp};
        const double data = asked.dp > 0 ? 0.3 * away(f.dp, asked.dp) : 0;
        meshes.push_back({away(tp, asked.tp) + away(cp, asked.cp) + away(pp, asked.pp) + data, f});
      }
  std::stable_sort(meshes.begin(), meshes.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [distance, f] : meshes)
    if (legal(deck, f, features_missing)) return f;
  return std::nullopt;
}

std::string suggestion(const Deck& deck, const Factors& asked, int64_t ranks) {
  // Where nothing fits this number of ranks (3 ranks, batch 8), one of the next smaller numbers may do.
  std::string start;
  for (int64_t n = ranks; n >= 1 && n > ranks - 16; --n) {
    if (const auto f = nearest_mesh(deck, asked, n))
      return start + "a legal mesh for " + text(n) + (n == 1 ? " rank" : " ranks") + ": tp = " + text(f->tp) +
             ", cp = " + text(f->cp) + ", pp = " + text(f->pp) + ", dp = " + text(f->dp);
    start = "no mesh of " + text(ranks) + " ranks fits the sizes and the batch of this deck; ";
  }
  return start + "see the other problems";
}

bool is_order(const std::string& order) {
  std::vector<std::string> axes{"tp", "cp", "pp", "dp"};
  std::sort(axes.begin(), axes.end());
  do {
    if (order == axes[0] + "-" + axes[1] + "-" + axes[2] + "-" + axes[3]) return true;
  } while (std::next_permutation(axes.begin(), axes.end()));
  return false;
}

}  // namespace

int64_t data_ranks(const Deck& deck, int64_t ranks) {
  const Factors f = factors(deck);
  if (!positive(f)) return 0;
  if (f.dp > 0) return f.dp;
  const int64_t rest = product(product(f.tp, f.cp), f.pp);
  return ranks >= rest && ranks % rest == 0 ? ranks / rest : 0;
}

std::vector<std::string> check_mesh(const Deck& deck, int64_t ranks) {
  std::vector<std::string> out;
  Factors f = factors(deck);
  const std::string shown = "tp x cp x pp x dp = " + text(f.tp) + " x " + text(f.cp) + " x " + text(f.pp) + " x " +
                            (f.dp == 0 ? "(the ranks that are left)" : text(f.dp));
  const std::string launched = text(ranks) + (ranks == 1 ? " rank was" : " ranks were") + " launched";
  const int64_t rest = product(product(f.tp, f.cp), f.pp);
  if (!positive(f)) {
    out.push_back("mesh: " + shown +
                  ": tp, cp and pp are at least 1, dp is at least 1 or 0 for the ranks that are left; " + launched +
                  "; " + suggestion(deck, f, ranks));
  } else if (f.dp == 0 && data_ranks(deck, ranks) == 0) {
    out.push_back("mesh: " + shown + ": tp x cp x pp = " + text(rest) +
                  " does not divide the number of ranks: " + launched + "; " + suggestion(deck, f, ranks) +
                  "; or launch a multiple of " + text(rest) + " ranks");
  } else if (f.dp > 0 && product(rest, f.dp) != ranks) {
    out.push_back("mesh: " + shown + " = " + text(product(rest, f.dp)) + ", but " + launched + "; " +
                  suggestion(deck, f, ranks) + "; or launch " + text(product(rest, f.dp)) + " ranks");
  }
  f.dp = std::max<int64_t>(data_ranks(deck, ranks), 0);
  if (positive(f))
    for (auto& problem : check_experts(deck, f)) out.push_back(std::move(problem));
  if (!is_order(deck[keys::mesh::order]))
    out.push_back(deck.show(keys::mesh::order) +
                  ": expects tp, cp, pp and dp once each, fastest first, as in \"tp-cp-pp-dp\"");
  return out;
}

}  // namespace orthant
