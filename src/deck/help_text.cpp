// What a deck may say, in words, straight from the declarations.
#include "deck/help_text.hpp"

#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "deck/megatron.hpp"
#include "deck/nearest.hpp"
#include "deck/registry.hpp"
#include "orthant/deck.hpp"
#include "orthant/error.hpp"

namespace orthant {

/// Breaks text into lines of at most `width`, each after `indent` spaces.
static std::string wrapped(const std::string& text, std::size_t indent, std::size_t width) {
  std::istringstream words(text);
  std::string out, line, word;
  while (words >> word) {
    if (!line.empty() && line.size() + 1 + word.size() > width - indent) {
      out += std::string(indent, ' ') + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return out + std::string(indent, ' ') + line + "\n";
}

static std::vector<std::string> sections() {
  std::vector<std::string> out;
  for (const auto index : keys_in_reading_order())
    if (out.empty() || out.back() != all_keys()[index].section) out.push_back(all_keys()[index].section);
  return out;
}

static std::string describe_key(const KeyInfo& key) {
  std::string facts = key_type_name(key) + (key.unit.empty() ? "" : ", " + key.unit);
  if (key.is_path) facts += ", path";
  facts += key.required ? "; required" : (key.derived.empty() ? "; default " : "; default: ") + key_default(key);
  if (const auto range = key_range(key); !range.empty())
    facts += (key.choices.empty() ? "; range " : "; one of ") + range;
  facts += "; on resume: " + rule_name(key.on_resume);
  return "  " + key.leaf + "\n" + wrapped(facts, 6, 110) + wrapped(key.help, 6, 110);
}

/// What the words behind "on resume" mean, of those that occur.
static std::string explain_rules(const std::set<OnResume>& rules) {
  static const std::vector<std::pair<OnResume, const char*>> meanings = {
      {OnResume::free, "may have another value in a resumed run"},
      {OnResume::told, "may change; the console says from what to what"},
      {OnResume::phase, "may change together with data.sequence, which begins a new phase of the data; else refused"},
      {OnResume::stream,
       "may change, told: data.sequence begins a new phase of the data, data.weights a new mixture in which no "
       "sample "
       "is repeated"},
      {OnResume::refused, "makes it another run: the resumed run does not start"}};
  std::string out = "\nOn resume the deck is compared with the one kept in the checkpoint:\n";
  for (const auto& [rule, meaning] : meanings) {
    if (!rules.count(rule)) continue;
    std::string lines = wrapped(meaning, 11, 110);
    const std::string name = rule_name(rule);
    out += lines.replace(2, name.size(), name);
  }
  return out;
}

/// Parameters of `wanted` and its sub-sections; of one key if `wanted` is its full name; of all if it is empty.
static std::string deck_help(const std::string& wanted) {
  std::string out, section;
  std::set<OnResume> rules;
  if (wanted.empty())
    out =
        "A deck is a TOML file. Any key can also be set after it on the command line: section.key=value.\n"
        "Relative paths are relative to the deck's folder; run.output and paths in overrides to the working "
        "folder.\n";
  for (const auto index : keys_in_reading_order()) {
    const auto& key = all_keys()[index];
    if (!wanted.empty() && key.section != wanted && key.name != wanted && !key.section.starts_with(wanted + "."))
      continue;
    if (key.section != section) {
      section = key.section;
      out += (out.empty() ? "[" : "\n[") + section + "]\n";
    }
    out += describe_key(key);
    rules.insert(key.on_resume);
  }
  return out + explain_rules(rules);
}

std::string help_text(const std::vector<std::string>& args) {
  if (args.empty() || (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")))
    return "usage: orthant help deck [section] | orthant help megatron\n\n"
           "  deck [section]  every deck parameter: type, unit, default, range, meaning\n"
           "  megatron        Megatron-LM options and our keys\n\n"
           "orthant --help lists the commands; orthant <command> --help explains one.\n";
  if (args.size() == 1 && args[0] == "megatron") return megatron_table();
  if (args.size() <= 2 && args[0] == "deck") {
    const std::string wanted = args.size() == 2 ? args[1] : "";
    if (wanted.empty() || is_section(wanted) || find_key(wanted)) return deck_help(wanted);
    const auto all = sections();
    std::string names;
    for (const auto& name : all) names += (names.empty() ? "" : ", ") + name;
    throw UsageError("help deck " + wanted + ": no such section; the nearest is " + nearest_of(wanted, all) +
                         "; sections: " + names,
                     true);
  }
  std::string topic;
  for (const auto& arg : args) topic += " " + arg;
  throw UsageError("help" + topic + ": no such topic; topics: deck, deck SECTION, deck SECTION.KEY, megatron", true);
}

}  // namespace orthant
