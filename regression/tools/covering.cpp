// The legal ways to train the golden cases on eight ranks, and a small set of them in which every two settings meet.
//
//   covering make           a covering set, one case a line, as in regression/decks/golden.cases
//   covering check FILE     names each pair of values that a legal case has and no case of FILE; 1 if there is one
//   covering all            every legal case, shuffled, the same way each time; their number on the error stream
//   covering refused        every case that breaks just one rule, shuffled too, with the rule's number as its name
//
// The rules are written here once more, not taken from the program: `make` and `all` say what ought to run.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

enum Factor { family, tp, cp, pp, dp, ep, etp, sp, schedule, context, zero, recompute, micro, factors };

/// A value is an index into the names of its factor; none = the setting has no meaning in this case.
constexpr int none = -1;
using Case = std::array<int, factors>;

struct Values {
  const char* name;
  std::vector<std::string> values;
};
const std::array<Values, factors> settings{{
    {"family", {"gpt2", "llama", "qwen3", "mixtral", "deepseek"}},
    {"tp", {"1", "2", "4", "8"}},
    {"cp", {"1", "2", "4", "8"}},
    {"pp", {"1", "2", "4", "8"}},
    {"dp", {"1", "2", "4", "8"}},
    {"ep", {"1", "2", "4", "8"}},
    {"etp", {"1", "tp"}},
    {"sequence_parallel", {"false", "true"}},
    {"schedule", {"1f1b", "gpipe", "interleaved.2", "interleaved.4", "zero_bubble", "zero_bubble.2"}},
    {"context.method", {"ring", "all_gather", "all_to_all"}},
    {"zero.stage", {"0", "1", "2", "3"}},
    {"recompute", {"none", "selective", "full"}},
    {"micro", {"1", "2"}},
}};

int count(int factor) { return static_cast<int>(settings[factor].values.size()); }
const std::string& text(const Case& c, int factor) { return settings[factor].values[c[factor]]; }

/// Sizes of regression/goldens/<family>-tiny; experts = 0: every layer is dense.
struct Model {
  int layers, heads, kv_heads, ffn, experts, expert_ffn, shared;
};
const std::array<Model, 5> models{{
    {8, 4, 4, 256, 0, 0, 0},
    {8, 8, 2, 160, 0, 0, 0},
    {4, 8, 4, 160, 0, 0, 0},
    {4, 8, 4, 0, 8, 96, 0},
    {4, 4, 4, 128, 8, 48, 48},
}};
constexpr int ranks = 8, sequence = 64, batch = 8;

// Of tp, cp, pp, dp and ep value i is 2^i.
int size(const Case& c, int axis) { return 1 << c[axis]; }
int chunks(const Case& c) {
  if (c[schedule] == none) return 1;
  const std::string& s = text(c, schedule);
  return s.ends_with(".2") ? 2 : s.ends_with(".4") ? 4 : 1;
}

/// Takes the settings away that mean nothing beside the others.
Case meaning(Case c) {
  const Model& m = models[c[family]];
  if (m.experts == 0) c[ep] = none;
  if (m.experts == 0 || size(c, tp) == 1) c[etp] = none;
  if (size(c, tp) == 1) c[sp] = none;
  if (size(c, pp) == 1) c[schedule] = none;
  if (size(c, cp) == 1) c[context] = none;
  if (size(c, dp) * size(c, cp) == 1) c[zero] = none;
  return c;
}

/// The numbers of the rules that a case breaks.
std::vector<int> broken(const Case& c) {
  const Model& m = models[c[family]];
  const int t = size(c, tp), k = size(c, cp), p = size(c, pp), d = size(c, dp);
  const auto fit = [](int a, int b) { return a % b == 0 || b % a == 0; };
  const bool exchange = c[context] != none && text(c, context) == "all_to_all";
  const bool cut_experts = c[etp] != none && text(c, etp) == "tp";
  std::vector<int> out;
  const auto rule = [&](int number, bool kept) {
    if (!kept) out.push_back(number);
  };
  rule(1, m.heads % t == 0 && fit(m.kv_heads, t));
  rule(2, !exchange || (m.heads % (t * k) == 0 && fit(m.kv_heads, t * k)));
  rule(3, m.ffn % t == 0 && m.shared % t == 0);
  rule(4, !cut_experts || m.expert_ffn % t == 0);
  rule(5, k == 1 || sequence % (2 * k) == 0);
  rule(6, c[sp] != 1 || sequence / k % t == 0);
  rule(7, m.layers + 2 >= p * chunks(c));
  rule(8, c[ep] == none || (m.experts % size(c, ep) == 0 && (cut_experts ? 1 : t) * k * d % size(c, ep) == 0));
  rule(9, m.experts == 0 || t == 1 || c[sp] == 1);
  rule(10, batch % ((1 << c[micro]) * d) == 0);
  return out;
}

/// Every case of eight ranks that breaks as many rules as asked, in the order of its values.
std::vector<Case> cases(std::size_t rules_broken) {
  std::set<Case> out;
  Case c{};
  for (;;) {
    if (c[tp] + c[cp] + c[pp] + c[dp] == 3) {
      const Case real = meaning(c);
      if (broken(real).size() == rules_broken) out.insert(real);
    }
    int f = 0;
    while (f < factors && ++c[f] == count(f)) c[f++] = 0;
    if (f == factors) return {out.begin(), out.end()};
  }
}

/// A sequence that is the same on every machine (xorshift; std::shuffle leaves the algorithm open).
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(0x9e3779b97f4a7c15ULL * (seed + 1)) {}
  std::size_t below(std::size_t n) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::size_t>((state_ >> 11) % n);
  }
  void shuffle(std::vector<Case>& list) {
    for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
  }

 private:
  std::uint64_t state_;
};

/// Pairs of values (first factor, value, second factor, value) as bits.
class Pairs {
 public:
  Pairs() : on_(static_cast<std::size_t>(factors * stride * factors * stride)) {}
  static constexpr int stride = 8;  // no factor has more values

  template <class Do>
  static void each(const Case& c, Do&& apply) {
    for (int a = 0; a < factors; ++a)
      for (int b = a + 1; b < factors; ++b)
        if (c[a] != none && c[b] != none) apply(((a * stride + c[a]) * factors + b) * stride + c[b]);
  }
  void add(const Case& c) {
    each(c, [&](int at) { on_[at] = 1; });
  }
  void remove(const Case& c) {
    each(c, [&](int at) { on_[at] = 0; });
  }
  int shared(const Case& c) const {
    int n = 0;
    each(c, [&](int at) { n += on_[at]; });
    return n;
  }
  int size() const { return std::accumulate(on_.begin(), on_.end(), 0); }

  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (std::size_t i = 0; i < on_.size(); ++i) {
      if (on_[i] == 0) continue;
      const int at = static_cast<int>(i), second = at / stride % factors, first = at / stride / factors / stride;
      const auto name = [](int factor, int value) {
        return std::string(settings[factor].name) + " = " + settings[factor].values[value];
      };
      out.push_back(name(first, at / stride / factors % stride) + " with " + name(second, at % stride));
    }
    return out;
  }

 private:
  std::vector<char> on_;
};

/// Takes, for one family after the other, the case with most pairs that are still open; so those that show most come
/// first. `legal` in the order in which ties are broken.
std::vector<Case> greedy(const std::vector<Case>& legal) {
  std::vector<std::vector<Case>> of(models.size());
  Pairs open;
  for (const Case& c : legal) {
    of[c[family]].push_back(c);
    open.add(c);
  }
  std::vector<Case> out;
  for (std::size_t turn = 0; open.size() > 0; ++turn) {
    const Case* best = nullptr;
    int most = 0;
    for (const Case& c : of[turn % of.size()])
      if (const int n = open.shared(c); n > most) most = n, best = &c;
    if (best == nullptr) continue;  // this family has shown all it can
    open.remove(*best);
    out.push_back(*best);
  }
  return out;
}

int pairs_of(const std::vector<Case>& set) {
  Pairs pairs;
  for (const Case& c : set) pairs.add(c);
  return pairs.size();
}

/// Leaves out cases whose every pair another case has too.
void drop_spare(std::vector<Case>& set) {
  const int whole = pairs_of(set);
  for (std::size_t i = set.size(); i-- > 0;) {
    std::vector<Case> rest = set;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
    if (pairs_of(rest) == whole) set = std::move(rest);
  }
}

/// Where tensor and context parallelism share all ranks, messages take most of the time: two sequences at once, if no
/// pair is lost by it.
void spare_messages(std::vector<Case>& set) {
  const int whole = pairs_of(set);
  for (Case& c : set) {
    const Case before = c;
    if (size(c, tp) * size(c, cp) == ranks) c[micro] = 1;
    if (pairs_of(set) < whole) c = before;
  }
}

std::vector<Case> covering_set() {
  std::vector<Case> legal = cases(0), best;
  for (int attempt = 0; attempt < 100; ++attempt) {  // the size depends on how ties are broken
    Dice(static_cast<std::uint64_t>(attempt)).shuffle(legal);
    std::vector<Case> set = greedy(legal);
    drop_spare(set);
    if (best.empty() || set.size() < best.size()) best = set;
  }
  spare_messages(best);
  return best;
}

/// What is not the default of the deck.
std::vector<std::string> overrides(const Case& c) {
  std::vector<std::string> out;
  for (const auto& [axis, key] : std::vector<std::pair<int, std::string>>{
           {tp, "mesh.tp="}, {cp, "mesh.cp="}, {pp, "mesh.pp="}, {dp, "mesh.dp="}, {ep, "mesh.ep="}})
    if (c[axis] > 0) out.push_back(key + text(c, axis));
  if (c[etp] > 0) out.push_back("mesh.etp=" + text(c, tp));
  if (c[sp] > 0) out.push_back("mesh.sequence_parallel=true");
  if (c[schedule] > 0) {
    const std::string& s = text(c, schedule);
    out.push_back("pipeline.schedule=" + s.substr(0, s.find('.')));
    if (chunks(c) > 1) out.push_back("pipeline.virtual_stages=" + std::to_string(chunks(c)));
  }
  for (const auto& [factor, key] : std::vector<std::pair<int, std::string>>{{context, "context.method="},
                                                                            {zero, "zero.stage="},
                                                                            {recompute, "memory.recompute="},
                                                                            {micro, "batch.micro="}})
    if (c[factor] > 0) out.push_back(key + text(c, factor));
  return out;
}

void print(const std::string& name, const Case& c) {
  std::printf("%s %-8s %d fp32 ", name.c_str(), text(c, family).c_str(), ranks);
  for (const std::string& word : overrides(c)) std::printf(" %s", word.c_str());
  std::printf("\n");
}

std::string numbered(const char* stem, std::size_t number, int digits) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "%s.%0*zu", stem, digits, number);
  return name.data();
}

/// The cases of a file; each must be legal and written just as `print` would.
std::vector<Case> read(const std::string& file) {
  std::map<std::pair<std::string, std::vector<std::string>>, Case> known;
  for (const Case& c : cases(0)) known[{text(c, family), overrides(c)}] = c;
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot read " + file);
  std::vector<Case> out;
  std::set<std::string> names;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name, model, number, precision;
    words >> name >> model >> number >> precision;
    std::vector<std::string> rest;
    for (std::string word; words >> word;) rest.push_back(word);
    const auto at = known.find({model, rest});
    if (at == known.end() || number != std::to_string(ranks) || precision != "fp32")
      throw std::runtime_error(file + ": no legal case, or not written as this program does: " + line);
    if (!names.insert(name).second) throw std::runtime_error(file + ": two cases are called " + name);
    out.push_back(at->second);
  }
  return out;
}

int check(const std::string& file) {
  Pairs open;
  for (const Case& c : cases(0)) open.add(c);
  const int all = open.size();
  const std::vector<Case> set = read(file);
  for (const Case& c : set) open.remove(c);
  for (const std::string& pair : open.names()) std::printf("not covered: %s\n", pair.c_str());
  std::printf("%zu cases, %d of %d pairs\n", set.size(), all - open.size(), all);
  return open.size() > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> a(argv + 1, argv + argc);
  try {
    if (a.size() == 2 && a[0] == "check") return check(a[1]);
    if (a.size() == 1 && a[0] == "make") {
      std::printf(
          "# Cases of eight ranks in which every two settings meet that can; written by `covering make`\n"
          "# (regression/tools/covering.cpp). Name, model, ranks, precision, then overrides; 20 steps each.\n");
      std::size_t number = 0;
      for (const Case& c : covering_set()) print(numbered("cover", ++number, 2), c);
      return 0;
    }
    if (a.size() == 1 && (a[0] == "all" || a[0] == "refused")) {
      std::vector<Case> list = cases(a[0] == "all" ? 0 : 1);
      Dice(0).shuffle(list);
      std::size_t number = 0;
      for (const Case& c : list)
        print(a[0] == "all" ? numbered("all", ++number, 5) : numbered("rule", broken(c)[0], 2), c);
      std::fprintf(stderr, "%zu cases\n", list.size());
      return 0;
    }
  } catch (const std::exception& e) {
    std::printf("covering: %s\n", e.what());
    return 2;
  }
  std::printf("covering make | check FILE | all | refused\n");
  return 2;
}
