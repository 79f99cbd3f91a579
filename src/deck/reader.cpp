// Reading a deck: the TOML file, then the overrides, then the defaults; every problem is kept, not just the first.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "deck/check.hpp"
#include "deck/convert.hpp"
#include "deck/keys_checkpoint.hpp"
#include "deck/keys_data.hpp"
#include "deck/keys_run.hpp"
#include "deck/layout_reasons.hpp"
#include "deck/megatron.hpp"
#include "deck/nearest.hpp"
#include "deck/registry.hpp"
#include "deck/toml_text.hpp"
#include "orthant/error.hpp"

namespace orthant {

namespace fs = std::filesystem;

class DeckReader {
 public:
  DeckReader(const std::string& path, std::vector<std::string>& problems) : shown_(path), problems_(problems) {
    deck_.path_ = fs::absolute(path).lexically_normal().string();
    deck_.name_ = fs::path(deck_.path_).stem().string();
    for (const auto& key : all_keys())
      deck_.slots_.push_back({.value = key.value, .present = !key.required && key.derived.empty()});
  }

  /// False if the text is not TOML, so that nothing can be said about what it lacks.
  bool read_file(const std::string& text) {
    TomlValue root;
    if (const auto problem = parse_toml(text, root)) {
      problems_.push_back(shown_ + ":" + *problem);
      return false;
    }
    walk(root, "");
    return true;
  }

  void read_overrides(const std::vector<std::string>& overrides) {
    for (std::size_t i = 0; i < overrides.size(); ++i) {
      const auto& text = overrides[i];
      const auto equals = text.find('=');
      if (equals != std::string::npos) {
        apply_override(text, text.substr(0, equals), text.substr(equals + 1));
        continue;
      }
      // `--option value` as Megatron scripts write it is two arguments
      const bool value_follows = text.starts_with("-") && i + 1 < overrides.size() &&
                                 !overrides[i + 1].starts_with("-") &&
                                 overrides[i + 1].find('=') == std::string::npos;
      const std::string value = value_follows ? overrides[i + 1] : "";
      if (const auto answer = megatron_answer(text, value)) {
        problems_.push_back("override " + text + (value.empty() ? "" : " " + value) + ": " + *answer);
        i += value_follows;
      } else {
        std::string right = "section.key=value";
        if (find_key(text)) right = text + "=" + "value";
        problems_.push_back("override " + text + ": expects " + right);
      }
    }
  }

  Deck finish(const std::vector<std::string>& not_needed, bool whole) {
    const auto& keys = all_keys();
    if (whole)
      for (const auto index : keys_in_reading_order()) {
        const auto& key = keys[index];
        const bool needed = std::find(not_needed.begin(), not_needed.end(), key.name) == not_needed.end();
        if (!key.required || deck_.slots_[index].present || !needed || mentioned_.count(key.name)) continue;
        problems_.push_back(shown_ + ": " + key.name + " is missing: " + key.help + " (" + key_type_name(key) +
                            (key_range(key).empty() ? "" : ", " + key_range(key)) + ")");
      }
    if (!deck_.has(keys::run::output))
      deck_.set(keys::run::output, (fs::current_path() / "runs" / deck_.name_).lexically_normal().string());
    if (!deck_.has(keys::data::seed)) deck_.set(keys::data::seed, deck_[keys::run::seed]);
    return std::move(deck_);
  }

 private:
  std::string at(int line) const { return shown_ + ":" + std::to_string(line) + ": "; }

  void walk(const TomlValue& table, const std::string& prefix) {
    for (const auto& [name, value] : table.as_table) {
      const std::string full = prefix.empty() ? name : prefix + "." + name;
      if (const auto index = find_key(full)) {
        store(*index, convert(all_keys()[*index], value, folder_of(*index, false)), at(value.line), value.line);
      } else if (is_section(full)) {
        if (value.kind == TomlValue::table)
          walk(value, full);
        else
          problems_.push_back(at(value.line) + full + " = " + describe(value) + ": " + full +
                              " is a section, expects keys below it");
      } else if (value.kind == TomlValue::table && !megatron_answer(name, "")) {
        unknown_section(value, full);
      } else {
        problems_.push_back(at(value.line) +
                            unknown_key(full, name, value.kind == TomlValue::text ? value.as_text : describe(value)));
      }
    }
  }

  void unknown_section(const TomlValue& table, const std::string& full) {
    std::set<std::string> sections;
    for (const auto& key : all_keys()) sections.insert(key.section);
    const std::vector<std::string> names(sections.begin(), sections.end());
    const auto near = nearest_of(full, names);
    problems_.push_back(at(table.line) + "unknown section [" + full + "]; the nearest is [" + near + "]");
    if (edit_distance(full, near) <= std::max<std::size_t>(2, near.size() / 3)) return;  // a slip: its keys are fine
    for (const auto& [name, value] : table.as_table)
      if (value.kind != TomlValue::table)
        problems_.push_back(at(value.line) + unknown_key(full + "." + name, name, describe(value)));
  }

  static std::string unknown_key(const std::string& full, const std::string& leaf, const std::string& value) {
    const std::string start = "unknown key " + full;
    if (const auto reason = layout_reason(full, value)) return start + ": " + *reason;
    const auto near = nearest_key(full);
    const auto near_leaf = near.substr(near.rfind('.') + 1);
    if (near_leaf == leaf && leaf != full) return start + "; did you mean " + near + "?";
    if (const auto answer = megatron_answer(leaf, value)) return start + ": " + *answer;
    return start + "; did you mean " + near + "?";
  }

  void apply_override(const std::string& text, const std::string& left, const std::string& right) {
    const std::string start = "override " + text + ": ";
    std::string name = left;
    while (name.starts_with("-")) name.erase(0, 1);
    auto index = find_key(name);
    if (!index) {  // an entry of a table: checkpoint.mpi_info.cb_nodes=8
      const auto dot = name.rfind('.');
      const auto table = dot == std::string::npos ? std::nullopt : find_key(name.substr(0, dot));
      if (table && std::holds_alternative<StringTable>(all_keys()[*table].value)) {
        auto& slot = deck_.slots_[*table];
        std::get<StringTable>(slot.value)[name.substr(dot + 1)] = right;
        slot.given = slot.present = true;
        return;
      }
      if (name.empty())
        problems_.push_back(start + "expects section.key=value");
      else if (is_section(name))
        problems_.push_back(start + name + " is a section, expects " + name + ".key=value");
      else
        problems_.push_back(start + unknown_key(name, name.substr(name.rfind('.') + 1), right));
      return;
    }
    const auto& info = all_keys()[*index];
    store(*index, convert(info, override_value(info, right), folder_of(*index, true)), start, 0);
  }

  /// Paths of the deck are relative to its folder, so that it can be called from anywhere; overrides and
  /// run.output are relative to where the user stands.
  fs::path folder_of(std::size_t index, bool is_override) const {
    if (is_override || index == keys::run::output.index()) return fs::current_path();
    return fs::path(deck_.path_).parent_path();
  }

  void store(std::size_t index, Converted&& converted, const std::string& where, int line) {
    mentioned_.insert(all_keys()[index].name);
    if (!converted.problem.empty()) problems_.push_back(where + converted.problem);
    if (!converted.ok) return;
    auto& slot = deck_.slots_[index];
    slot.value = std::move(converted.value);
    slot.present = slot.given = true;
    slot.line = line;
  }

  std::string shown_;
  std::vector<std::string>& problems_;
  std::set<std::string> mentioned_;  ///< so that a key with a wrong value is not called missing too
  Deck deck_;
};

std::string Deck::read_text(const std::string& path) {
  if (fs::is_directory(path)) throw UsageError(path + " is a folder; a deck is a TOML file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError("cannot read the deck " + path + ": " + std::strerror(errno));
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.good() && !file.eof()) throw UsageError("cannot read the deck " + path + ": " + std::strerror(errno));
  return text.str();
}

Deck Deck::read(const std::string& path, const std::vector<std::string>& overrides,
                const std::vector<std::string>& not_needed) {
  return parse(read_text(path), path, overrides, not_needed);
}

Deck Deck::parse(const std::string& text, const std::string& path, const std::vector<std::string>& overrides,
                 const std::vector<std::string>& not_needed) {
  std::vector<std::string> problems;
  Deck deck = parse(text, path, overrides, not_needed, problems);
  throw_problems(path, problems);
  return deck;
}

Deck Deck::parse(const std::string& text, const std::string& path, const std::vector<std::string>& overrides,
                 const std::vector<std::string>& not_needed, std::vector<std::string>& problems) {
  DeckReader reader(path, problems);
  const bool whole = reader.read_file(text);
  reader.read_overrides(overrides);
  return reader.finish(not_needed, whole);
}

void throw_problems(const std::string& path, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  std::string message =
      "deck " + path + ": " + std::to_string(problems.size()) + (problems.size() == 1 ? " problem" : " problems");
  for (const auto& problem : problems) message += "\n  " + problem;
  throw UsageError(message);
}

}  // namespace orthant
