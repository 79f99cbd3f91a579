// The deck: what a user may set for a run, read from a TOML file and `section.key=value` overrides.
//
// Each parameter is declared once, beside the code that owns it, with `add_key`; the handle it returns is the
// only way to read the value, so a misspelt key does not compile. The same declaration gives the range check,
// the message for an unknown key, `orthant help deck` and the resolved deck of the run folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace orthant {

using StringTable = std::map<std::string, std::string>;

/// The types a parameter can have.
using KeyValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<double>,
                              std::vector<int64_t>, StringTable>;

/// What it means when a resumed run has another value than the deck kept in its checkpoint (src/deck/changes.hpp
/// compares the two).
enum class OnResume {
  free,     ///< may change, nobody is told: it has no part in the mathematics of the run
  told,     ///< may change, and the console says from what to what
  phase,    ///< changes together with data.sequence only (a longer context), else it is refused
  stream,   ///< may change, told with what becomes of the samples; the data code decides how they go on
  refused,  ///< makes it another run: the start is refused
};

/// An OnResume without a default, so that a key declared without its rule does not compile.
class ResumeRule {
 public:
  constexpr ResumeRule(OnResume rule) : rule_(rule) {}
  constexpr operator OnResume() const { return rule_; }

 private:
  OnResume rule_;
};

/// A parameter as its owner declares it (designated initialisers keep the declarations readable).
template <class T>
struct KeySpec {
  std::string name{};  ///< "optimizer.lr", "model.rope.type"
  T value{};           ///< the default; ignored where `required` or `derived` is set
  bool required = false;
  std::string derived{};  ///< not empty: the default comes from elsewhere, and this says from where
  std::string unit{};
  std::optional<double> min{}, max{};       ///< of the value, or of each element of a list
  bool min_open = false, max_open = false;  ///< the bound itself is not allowed
  std::vector<std::string> choices{};       ///< of text
  bool or_path = false;                     ///< beside `choices`, a path to a file or folder
  bool or_number = false;                   ///< beside `choices`, a positive number (kept as text)
  bool is_path = false;                     ///< relative values are resolved when the deck is read
  std::optional<std::size_t> length{};      ///< of a list
  ResumeRule on_resume;                     ///< has to be given
  std::string help{};
};

/// The same without its type, for help and for messages.
struct KeyInfo {
  std::string name, section, leaf;
  KeyValue value;  ///< holds the type, and the default where there is one
  bool required = false;
  std::string derived, unit;
  std::optional<double> min, max;
  bool min_open = false, max_open = false;
  std::vector<std::string> choices;
  bool or_path = false, or_number = false, is_path = false;
  std::optional<std::size_t> length;
  OnResume on_resume = OnResume::refused;
  std::string help;
  unsigned line = 0;  ///< of its declaration: keys of a section are shown in the order they are written in
};

/// Handle of a parameter of type T: bool, int64_t, double, std::string, a vector of the last three, or StringTable.
template <class T>
class Key {
 public:
  explicit Key(std::size_t index) : index_(index) {}
  std::size_t index() const { return index_; }

 private:
  std::size_t index_;
};

/// Registers a parameter: `inline const auto lr = add_key<double>({.name = "optimizer.lr", …});`. Throws
/// LogicError if the name is taken.
template <class T>
Key<T> add_key(KeySpec<T> spec, std::source_location where = std::source_location::current());

/// All parameters, in order of registration (a key's `index()` is its place here).
const std::vector<KeyInfo>& all_keys();
/// Indices of all parameters in the order in which people read them: by section, then as declared.
std::vector<std::size_t> keys_in_reading_order();
/// Name of a parameter, for messages.
template <class T>
const std::string& key_name(const Key<T>& key) {
  return all_keys()[key.index()].name;
}
/// A rule as `orthant help deck` names it: "free", "told", "phase", "stream", "refused".
std::string rule_name(OnResume rule);
/// "integer", "number", "list of text", …
std::string key_type_name(const KeyInfo& info);
/// ">= 1", "0 <= … < 1", "one of …"; empty if every value of the type is allowed.
std::string key_range(const KeyInfo& info);
/// The default as TOML text, or in words where it is derived or required.
std::string key_default(const KeyInfo& info);
/// A value as TOML text.
std::string toml_text(const KeyValue& value);

/// A deck that has been read. Every value is of the right type and in range; relations between keys are the
/// business of deck/check.hpp.
class Deck {
 public:
  /// Reads a file and applies overrides (`section.key=value`, TOML values, strings may stay unquoted; of two
  /// overrides of one key the last counts). Throws one UsageError that lists every problem with file and line.
  /// Names in `not_needed` may be absent although they are required (`plan` needs no data).
  /// Not collective: rank 0 may read the text and all may `parse` it.
  static Deck read(const std::string& path, const std::vector<std::string>& overrides,
                   const std::vector<std::string>& not_needed = {});
  /// The same, with the text at hand; `path` names the deck and anchors its relative paths.
  static Deck parse(const std::string& text, const std::string& path, const std::vector<std::string>& overrides,
                    const std::vector<std::string>& not_needed = {});
  /// As `parse`, but collects problems instead of throwing (values of the wrong type keep their defaults, values
  /// out of range are kept), so that they can be reported with those found later.
  static Deck parse(const std::string& text, const std::string& path, const std::vector<std::string>& overrides,
                    const std::vector<std::string>& not_needed, std::vector<std::string>& problems);
  /// The text of a deck file. Throws UsageError when it cannot be read.
  static std::string read_text(const std::string& path);

  /// The value; LogicError if the key is derived or not needed and nothing has set it (ask `has` first).
  template <class T>
  const T& operator[](const Key<T>& key) const {
    return std::get<T>(value_at(key.index()));
  }
  /// The value, or `fallback` where there is none.
  template <class T>
  T get_or(const Key<T>& key, T fallback) const {
    return has(key) ? (*this)[key] : fallback;
  }
  /// There is a value: given, a default, or set.
  template <class T>
  bool has(const Key<T>& key) const {
    return has(key.index());
  }
  bool has(std::size_t index) const { return slots_[index].present; }
  /// It was in the file or in an override.
  template <class T>
  bool given(const Key<T>& key) const {
    return given(key.index());
  }
  bool given(std::size_t index) const { return slots_[index].given; }
  /// Fixes a value that is derived (sizes from config.json, dp from the number of ranks).
  template <class T>
  void set(const Key<T>& key, T value) {
    slots_[key.index()].value = std::move(value);
    slots_[key.index()].present = true;
  }

  /// The value without its type; LogicError if there is none.
  const KeyValue& value_at(std::size_t index) const;
  /// "deck.toml:12" or "override": where a value came from; "default" otherwise.
  std::string origin(std::size_t index) const;
  /// `mesh.tp = 2 (deck.toml:12)`: a value as messages name it.
  template <class T>
  std::string show(const Key<T>& key) const {
    return show(key.index());
  }
  std::string show(std::size_t index) const;

  /// TOML text with every value, all paths absolute, defaults written out, meaning and unit as comments. Read
  /// again, it gives the same values. Sections of features that are not in use (model.moe, model.mla) and values
  /// still to be derived appear as comments only.
  std::string resolved() const;

  /// Absolute path of the file, and its name without folder and extension.
  const std::string& path() const { return path_; }
  const std::string& name() const { return name_; }

 private:
  struct Slot {
    KeyValue value;
    bool present = false, given = false;
    int line = 0;  ///< 0 = not from the file
  };
  friend class DeckReader;
  std::vector<Slot> slots_;
  std::string path_, name_;
};

}  // namespace orthant
