// See verify_layouts.hpp.
#include "train/verify_layouts.hpp"

#include <cctype>
#include <charconv>
#include <set>
#include <sstream>

#include "orthant/error.hpp"
#include "orthant/schedule.hpp"

namespace orthant {

namespace {

std::string trimmed(const std::string& s) {
  const auto begin = s.find_first_not_of(" \t\n"), end = s.find_last_not_of(" \t\n");
  return begin == std::string::npos ? "" : s.substr(begin, end - begin + 1);
}

std::vector<std::string> split(const std::string& s, char at) {
  std::vector<std::string> out;
  std::istringstream in(s);
  for (std::string part; std::getline(in, part, at);)
    if (!trimmed(part).empty()) out.push_back(trimmed(part));
  return out;
}

[[noreturn]] void refuse(const std::string& layout, const std::string& problem) {
  std::string schedules;
  for (const std::string& s : schedule_names()) schedules += s + ", ";
  throw UsageError("--layouts: \"" + layout + "\": " + problem +
                       ". The words are tpN, cpN, ppN, dpN, epN, etpN (factors; one not named is 1, dp the ranks "
                       "that are left), sp (sequence parallelism), "
                       "vN (virtual stages), z0, z1, z2, z3 (ZeRO), ring, all_gather, all_to_all (context method), " +
                       schedules + "with , between words and ; between layouts; or all",
                   true);
}

/// A word of letters and a number: "tp2" is tp and 2.
std::optional<int64_t> number_behind(const std::string& word, const std::string& letters) {
  if (word.rfind(letters, 0) != 0 || word.size() == letters.size()) return std::nullopt;
  int64_t n = 0;
  const char *begin = word.data() + letters.size(), *end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(begin, end, n);
  if (error != std::errc() || stop != end || !std::isdigit(static_cast<unsigned char>(*begin))) return std::nullopt;
  return n;
}

/// What a word settles (two words that settle the same contradict each other), or empty if it is none.
std::string settle(LayoutWords& out, const std::string& word) {
  const std::pair<const char*, int64_t LayoutWords::*> factors[] = {
      {"tp", &LayoutWords::tp}, {"cp", &LayoutWords::cp}, {"pp", &LayoutWords::pp},
      {"dp", &LayoutWords::dp}, {"ep", &LayoutWords::ep}, {"etp", &LayoutWords::etp}};
  for (const auto& [name, member] : factors)
    if (auto n = number_behind(word, name); n && *n >= 1) return out.*member = *n, name;
  if (auto n = number_behind(word, "v"); n && *n >= 1) return out.chunks = *n, "v";
  if (auto n = number_behind(word, "z"); n && *n <= 3) return out.zero = *n, "z";
  if (word == "sp") return out.sequence_parallel = true, "sp";
  if (word == "ring" || word == "all_gather" || word == "all_to_all") return out.method = word, "the context method";
  if (is_schedule_name(word)) return out.schedule = word, "the schedule";
  return {};
}

std::string is(const std::string& key, int64_t value) { return key + "=" + std::to_string(value); }

bool has_chunks(const std::string& schedule) { return schedule != "1f1b" && schedule != "gpipe"; }

}  // namespace

std::vector<LayoutWords> read_layouts(const std::string& list) {
  std::vector<LayoutWords> out;
  for (const std::string& layout : split(list, ';')) {
    LayoutWords words;
    std::set<std::string> settled;
    for (const std::string& word : split(layout, ',')) {
      const std::string what = settle(words, word);
      if (what.empty()) refuse(layout, "\"" + word + "\" is no word of a layout");
      if (!settled.insert(what).second) refuse(layout, "\"" + word + "\" says " + what + " a second time");
    }
    if (settled.empty()) refuse(layout, "there is no word in it");
    out.push_back(words);
  }
  if (out.empty()) refuse(list, "there is no layout in it");
  return out;
}

std::vector<LayoutWords> all_layouts(int64_t ranks, bool experts) {
  std::vector<LayoutWords> out;
  const auto add = [&](LayoutWords w) {
    w.sequence_parallel = false;
    out.push_back(w);
    if (w.tp == 1) return;
    w.sequence_parallel = true;
    out.push_back(w);
  };
  for (int64_t tp = 1; tp <= ranks; ++tp)
    for (int64_t cp = 1; ranks % tp == 0 && cp <= ranks / tp; ++cp)
      for (int64_t pp = 1; ranks / tp % cp == 0 && pp <= ranks / tp / cp; ++pp) {
        if (ranks / tp / cp % pp != 0) continue;
        LayoutWords w;
        w.tp = tp, w.cp = cp, w.pp = pp, w.dp = ranks / tp / cp / pp;
        add(w);
        const int64_t stage = tp * cp * w.dp;
        for (int64_t ep = 2; experts && ep <= stage; ++ep) {
          if (stage % ep != 0) continue;
          w.ep = ep;
          w.etp = 1;
          add(w);
          if (tp == 1) continue;
          w.etp = tp;
          add(w);
        }
      }
  return out;
}

std::string text_of(const LayoutWords& w, int64_t ranks) {
  std::string out;
  const auto add = [&](const std::string& word) {
    if (!out.empty()) out += ',';
    out += word;
  };
  const auto factor = [&](const char* name, int64_t n) {
    if (n > 1) add(std::string(name).append(std::to_string(n)));
  };
  factor("tp", w.tp);
  factor("cp", w.cp);
  factor("pp", w.pp);
  // compared by division: the product of what a user typed need not fit
  const int64_t rest = w.dp > 0 ? w.dp
                       : ranks % w.tp == 0 && ranks / w.tp % w.cp == 0 && ranks / w.tp / w.cp % w.pp == 0
                           ? ranks / w.tp / w.cp / w.pp
                           : 1;
  factor("dp", rest);
  factor("ep", w.ep);
  factor("etp", w.etp);
  if (out.empty()) add("dp1");
  if (w.sequence_parallel.value_or(false)) add("sp");
  if (w.chunks) add(std::string("v").append(std::to_string(*w.chunks)));
  if (w.zero) add(std::string("z").append(std::to_string(*w.zero)));
  if (!w.method.empty()) add(w.method);
  if (!w.schedule.empty()) add(w.schedule);
  return out;
}

std::vector<std::string> overrides_of(const LayoutWords& w, const DeckWords& deck) {
  std::vector<std::string> out = {is("mesh.tp", w.tp), is("mesh.cp", w.cp), is("mesh.pp", w.pp),
                                  is("mesh.dp", w.dp), is("mesh.ep", w.ep), is("mesh.etp", w.etp)};
  if (w.sequence_parallel)
    out.push_back(std::string("mesh.sequence_parallel=") + (*w.sequence_parallel ? "true" : "false"));
  else if (w.tp == 1)
    out.push_back("mesh.sequence_parallel=false");
  if (w.pp == 1 && !w.chunks && w.schedule.empty()) {
    out.push_back("pipeline.schedule=1f1b");  // the deck's may be a file for its own stages
    out.push_back("pipeline.virtual_stages=1");
    if (deck.stage_blocks >= 0) out.push_back("pipeline.stage_layers=[" + std::to_string(deck.stage_blocks) + "]");
  }
  if (!w.schedule.empty())
    out.push_back("pipeline.schedule=" + w.schedule);
  else if (w.chunks.value_or(1) > 1 && !has_chunks(deck.schedule))
    out.push_back("pipeline.schedule=interleaved");
  if (w.chunks)
    out.push_back(is("pipeline.virtual_stages", *w.chunks));
  else if (!w.schedule.empty() && !has_chunks(w.schedule))
    out.push_back("pipeline.virtual_stages=1");
  if (w.zero) out.push_back(is("zero.stage", *w.zero));
  if (w.zero == 0) out.push_back("zero.shard=0");
  if (!w.method.empty()) out.push_back("context.method=" + w.method);
  return out;
}

std::vector<std::string> overrides_of_one_rank(const DeckWords& deck) {
  LayoutWords one;
  one.dp = 1;
  one.zero = 0;
  return overrides_of(one, deck);
}

}  // namespace orthant
