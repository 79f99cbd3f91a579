// See changes.hpp.
#include "deck/changes.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "deck/convert.hpp"
#include "deck/keys_data.hpp"
#include "deck/keys_model.hpp"
#include "deck/keys_optimizer.hpp"
#include "deck/registry.hpp"
#include "deck/toml_text.hpp"
#include "orthant/error.hpp"

namespace orthant {

namespace {

/// What the stored text says of each key.
struct StoredDeck {
  std::map<std::size_t, TomlValue> values;
  std::set<std::string> left_open;  ///< names of keys that were still to be derived
  std::vector<std::pair<std::string, std::string>> unknown;
};

void collect(const TomlValue& table, const std::string& prefix, StoredDeck& out) {
  for (const auto& [name, value] : table.as_table) {
    const std::string full = prefix.empty() ? name : prefix + "." + name;
    if (const auto index = find_key(full)) {
      out.values.emplace(*index, value);
    } else if (value.kind == TomlValue::table) {
      collect(value, full, out);
    } else {
      out.unknown.emplace_back(full, describe(value));
    }
  }
}

/// Deck::resolved writes `# leaf = …` for a value still to be derived. That is not the same as a key the writing
/// version did not have: there the default meant something, and giving a value now is a change.
void collect_left_open(const std::string& text, StoredDeck& out) {
  std::istringstream lines(text);
  std::string line, section;
  while (std::getline(lines, line)) {
    if (line.starts_with("[") && line.ends_with("]")) section = line.substr(1, line.size() - 2);
    const auto mark = line.find(" = …");
    if (line.starts_with("# ") && mark != std::string::npos)
      out.left_open.insert(section + "." + line.substr(2, mark - 2));
  }
}

std::string not_given(const KeyInfo& info) { return "not given (" + info.derived + ")"; }

/// The two values of a key whose 0 stands for a number in the checkpoint; true if they are the same.
bool settle_zero(int64_t kept, KeyValue& before, KeyValue& after) {
  for (KeyValue* value : {&before, &after})
    if (std::get<int64_t>(*value) == 0) *value = kept;
  return before == after || std::get<int64_t>(before) == 0 || std::get<int64_t>(after) == 0;
}

class Comparison {
 public:
  Comparison(StoredDeck stored, const Deck& now, const KeptFacts& kept)
      : stored_(std::move(stored)), now_(now), kept_(kept) {}

  std::vector<DeckChange> run() {
    for (const auto index : keys_in_reading_order()) compare(index);
    const bool new_phase = std::any_of(changes_.begin(), changes_.end(),
                                       [](const DeckChange& c) { return c.key == key_name(keys::data::sequence); });
    for (DeckChange& change : changes_) settle(change, new_phase);
    for (const auto& [name, value] : stored_.unknown)
      changes_.push_back({name, value, "", OnResume::told, "not a key of this version"});
    return std::move(changes_);
  }

 private:
  void compare(std::size_t index) {
    const KeyInfo& info = all_keys()[index];
    if (info.on_resume == OnResume::free) return;
    const auto entry = stored_.values.find(index);
    const bool was_given = entry != stored_.values.end();
    if (!was_given) {
      if (stored_.left_open.count(info.name) && now_.has(index))
        add(info, not_given(info), toml_text(now_.value_at(index)));
      return;
    }
    const Converted before = convert(info, entry->second, "/");
    if (!now_.has(index)) {
      add(info, before.ok ? toml_text(before.value) : describe(entry->second), not_given(info));
    } else if (!before.ok) {  // a value that this version does not allow cannot be the present one
      add(info, describe(entry->second), toml_text(now_.value_at(index)));
    } else {
      KeyValue then = before.value, here = now_.value_at(index);
      const bool same = index == keys::data::samples.index()            ? settle_zero(kept_.samples, then, here)
                        : index == keys::optimizer::decay_steps.index() ? settle_zero(kept_.decay_steps, then, here)
                                                                        : then == here;
      if (!same) add(info, toml_text(then), toml_text(here));
    }
  }

  void add(const KeyInfo& info, std::string before, std::string after) {
    changes_.push_back({info.name, std::move(before), std::move(after), info.on_resume, ""});
  }

  /// The rule of a key as it is declared becomes what holds in this run.
  void settle(DeckChange& change, bool new_phase) const {
    const std::string& sequence = key_name(keys::data::sequence);
    if (change.key == key_name(keys::optimizer::name) && !kept_.optimizer) {
      change.rule = OnResume::told;
      change.note = "the checkpoint holds no state of an optimiser";
    } else if (change.rule == OnResume::phase) {
      // learned positions are a parameter of model.context rows: no phase of the data can give them another size
      const bool table =
          change.key == key_name(keys::model::context) && now_.get_or(keys::model::family, std::string()) == "gpt2";
      if (table) {
        change.note = "it is the number of learned positions";
      } else if (!new_phase) {
        change.note = "it may change together with " + sequence + " only, which begins a new phase of the data";
      }
      if (table || !new_phase) change.rule = OnResume::refused;
    } else if (change.key == key_name(keys::data::samples) && new_phase) {
      change.rule = OnResume::told;
      change.note = "the length of the new phase";
    } else if (change.key == sequence) {
      change.note = "a new phase of the data begins";
    } else if (change.key == key_name(keys::data::weights)) {
      change.note = "the mixture changes from here on, no sample is repeated";
    }
  }

  StoredDeck stored_;
  const Deck& now_;
  KeptFacts kept_;
  std::vector<DeckChange> changes_;
};

}  // namespace

std::vector<DeckChange> deck_changes(const std::string& stored_text, const Deck& now, const KeptFacts& kept) {
  if (stored_text.empty()) return {};
  TomlValue root;
  if (const auto problem = parse_toml(stored_text, root))
    return {{"/deck", "", "", OnResume::told, "not TOML (" + *problem + "), so it is not known what has changed"}};
  StoredDeck stored;
  collect(root, "", stored);
  collect_left_open(stored_text, stored);
  return Comparison(std::move(stored), now, kept).run();
}

std::vector<std::string> tell_changes(const std::vector<DeckChange>& changes) {
  std::vector<std::string> lines;
  for (const DeckChange& c : changes) {
    if (c.rule == OnResume::refused || c.rule == OnResume::free) continue;
    std::string line = c.key;
    if (!c.before.empty()) line += " was " + c.before;
    if (!c.after.empty()) line += ", is " + c.after;
    lines.push_back(line + (c.note.empty() ? "" : ": " + c.note));
  }
  return lines;
}

void refuse_changes(const std::vector<DeckChange>& changes, const std::string& checkpoint) {
  std::string list;
  int count = 0;
  bool weights_may_go_on = false;
  for (const DeckChange& c : changes) {
    if (c.rule != OnResume::refused) continue;
    ++count;
    list += "\n  " + c.key + " was " + c.before + " when the checkpoint was written, and is " + c.after + " now" +
            (c.note.empty() ? "" : " (" + c.note + ")");
    weights_may_go_on |= !c.key.starts_with("data.") && !c.key.starts_with("run.");
  }
  if (count == 0) return;
  std::string message = "the deck changes what a run that has begun must keep (checkpoint " + checkpoint +
                        "):" + list + "\nSet the old value" + (count > 1 ? "s" : "") +
                        " again, or begin a new run with another run.output";
  if (weights_may_go_on)
    message += "; to begin it from these weights, make a Hugging Face folder of them (orthant convert " + checkpoint +
               " FOLDER) and name it in model.load: sizes and kind of the model stay those of the weights";
  throw UsageError(message, true);
}

}  // namespace orthant
