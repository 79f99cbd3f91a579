// A deck that has been read: values, where they came from, and the resolved deck of the run folder.
#include "orthant/deck.hpp"

#include <filesystem>
#include <set>

#include "deck/registry.hpp"
#include "orthant/error.hpp"

namespace orthant {

const KeyValue& Deck::value_at(std::size_t index) const {
  ORTHANT_ENSURE(index < slots_.size() && slots_[index].present,
                 "deck value read before it was settled: " + (index < slots_.size() ? all_keys()[index].name : "?"));
  return slots_[index].value;
}

std::string Deck::origin(std::size_t index) const {
  const auto& slot = slots_[index];
  if (!slot.given) return "default";
  if (slot.line == 0) return "override";
  return std::filesystem::path(path_).filename().string() + ":" + std::to_string(slot.line);
}

std::string Deck::show(std::size_t index) const {
  const auto& slot = slots_[index];
  const auto& name = all_keys()[index].name;
  return slot.present ? name + " = " + toml_text(slot.value) + " (" + origin(index) + ")" : name + " (not given)";
}

std::string Deck::resolved() const {
  // A feature section in which nothing was given or settled (a derived key has no value before) stays out, or reading
  // this deck again would switch it on.
  std::set<std::string> sections_in_use;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].given || (slots_[i].present && !all_keys()[i].derived.empty()))
      sections_in_use.insert(all_keys()[i].section);
  std::string text =
      "# Resolved deck: every value this run uses. Running it again repeats the run.\n# From " + path_ + "\n";
  std::string section;
  for (const auto index : keys_in_reading_order()) {
    const auto& key = all_keys()[index];
    const auto& slot = slots_[index];
    if (key.section != section) {
      section = key.section;
      text += "\n[" + section + "]\n";
    }
    const bool feature = section == "model.moe" || section == "model.mla";
    const bool commented = !slot.present || (feature && !sections_in_use.count(section));
    std::string line = commented ? "# " + key.leaf : key.leaf;
    line += " = " + (slot.present ? toml_text(slot.value) : "…");
    if (!slot.present) line += "  (" + (key.required ? "not given" : "default: " + key.derived) + ")";
    line.resize(std::max<std::size_t>(line.size(), 28), ' ');
    text += line + "  # " + key.help + (key.unit.empty() ? "" : " [" + key.unit + "]") + "\n";
  }
  return text;
}

}  // namespace orthant
