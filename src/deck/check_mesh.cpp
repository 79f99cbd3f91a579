// Does the mesh fit the ranks, and if not, which mesh would?
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "deck/check.hpp"
#include "deck/keys_mesh.hpp"
#include "deck/keys_model.hpp"
#include "deck/model_mixtures.hpp"

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
  return out;
}

/// No rule of this deck is broken on mesh `f` (rules on sizes that config.json will give are left out).
bool legal(const Deck& deck, const Factors& f, std::size_t features_missing) {
  Deck candidate = with_mesh(deck, f);
  if (not_built(candidate).size() > features_missing) return false;
  std::vector<std::string> unused;
  ModelConfig model = model_config(candidate, unused);
  if (deck[keys::model::load].empty()) {
    if (!has_mixtures(model.family)) {  // a suggestion need not repeat what no mesh can have
      candidate.set(keys::mesh::ep, int64_t{1});
      candidate.set(keys::mesh::etp, int64_t{1});
    }
  } else if (deck[keys::mesh::ep] > 1 || deck[keys::mesh::etp] > 1) {
    model.moe.experts = deck[keys::mesh::ep];  // config.json will tell; the other rules on experts hold already
  }
  return check_sizes(candidate, model).empty();
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
  const Factors f = factors(deck);
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
  if (!is_order(deck[keys::mesh::order]))
    out.push_back(deck.show(keys::mesh::order) +
                  ": expects tp, cp, pp and dp once each, fastest first, as in \"tp-cp-pp-dp\"");
  return out;
}

}  // namespace orthant
