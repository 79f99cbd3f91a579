// The registry of deck keys, and how keys and values are put into words.
#include "deck/registry.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "orthant/error.hpp"

namespace orthant {

namespace {

// Sections as people look for them; a section that is not named here comes after these, by alphabet.
constexpr std::array<const char*, 20> reading_order = {
    "run",     "model", "model.rope", "model.moe", "model.mla", "data",       "batch", "mesh",  "layout", "pipeline",
    "context", "zero",  "optimizer",  "precision", "memory",    "checkpoint", "comm",  "guard", "log",    "device"};

std::vector<KeyInfo>& registry() {
  static std::vector<KeyInfo> keys;
  return keys;
}

std::size_t section_rank(const std::string& section) {
  for (std::size_t i = 0; i < reading_order.size(); ++i)
    if (section == reading_order[i]) return i;
  return reading_order.size();
}

// Limits are kept as doubles; whole ones are written without a fraction.
std::string limit_text(double x) {
  if (std::floor(x) == x && std::fabs(x) < 1e15) return std::to_string(static_cast<int64_t>(x));
  return number_text(x);
}

struct TypeName {
  std::string operator()(bool) const { return "true or false"; }
  std::string operator()(int64_t) const { return "integer"; }
  std::string operator()(double) const { return "number"; }
  std::string operator()(const std::string&) const { return "text"; }
  std::string operator()(const std::vector<std::string>&) const { return "list of text"; }
  std::string operator()(const std::vector<double>&) const { return "list of numbers"; }
  std::string operator()(const std::vector<int64_t>&) const { return "list of integers"; }
  std::string operator()(const StringTable&) const { return "table of text"; }
};

template <class Items, class Show>
std::string bracketed(const Items& items, Show show) {
  std::string text = "[";
  for (std::size_t i = 0; i < items.size(); ++i) text += (i ? ", " : "") + show(items[i]);
  return text + "]";
}

struct ValueText {
  std::string operator()(bool x) const { return x ? "true" : "false"; }
  std::string operator()(int64_t x) const { return std::to_string(x); }
  std::string operator()(double x) const { return number_text(x); }
  std::string operator()(const std::string& x) const { return quoted(x); }
  std::string operator()(const std::vector<std::string>& x) const { return bracketed(x, quoted); }
  std::string operator()(const std::vector<double>& x) const { return bracketed(x, number_text); }
  std::string operator()(const std::vector<int64_t>& x) const {
    return bracketed(x, [](int64_t i) { return std::to_string(i); });
  }
  std::string operator()(const StringTable& x) const {
    std::string text;
    for (const auto& [name, value] : x) text += (text.empty() ? " " : ", ") + quoted(name) + " = " + quoted(value);
    return text.empty() ? "{}" : "{" + text + " }";
  }
};

}  // namespace

template <class T>
Key<T> add_key(KeySpec<T> spec, std::source_location where) {
  auto& keys = registry();
  KeyInfo info;
  const auto dot = spec.name.rfind('.');
  ORTHANT_ENSURE(dot != std::string::npos, "deck key without a section: " + spec.name);
  for (const auto& key : keys) ORTHANT_ENSURE(key.name != spec.name, "deck key declared twice: " + spec.name);
  info.name = spec.name;
  info.section = spec.name.substr(0, dot);
  info.leaf = spec.name.substr(dot + 1);
  info.value = std::move(spec.value);
  info.required = spec.required;
  info.derived = std::move(spec.derived);
  info.unit = std::move(spec.unit);
  info.min = spec.min;
  info.max = spec.max;
  info.min_open = spec.min_open;
  info.max_open = spec.max_open;
  info.choices = std::move(spec.choices);
  info.or_path = spec.or_path;
  info.or_number = spec.or_number;
  info.is_path = spec.is_path;
  info.length = spec.length;
  info.on_resume = spec.on_resume;
  info.help = std::move(spec.help);
  info.line = where.line();
  keys.push_back(std::move(info));
  return Key<T>(keys.size() - 1);
}

template Key<bool> add_key(KeySpec<bool>, std::source_location);
template Key<int64_t> add_key(KeySpec<int64_t>, std::source_location);
template Key<double> add_key(KeySpec<double>, std::source_location);
template Key<std::string> add_key(KeySpec<std::string>, std::source_location);
template Key<std::vector<std::string>> add_key(KeySpec<std::vector<std::string>>, std::source_location);
template Key<std::vector<double>> add_key(KeySpec<std::vector<double>>, std::source_location);
template Key<std::vector<int64_t>> add_key(KeySpec<std::vector<int64_t>>, std::source_location);
template Key<StringTable> add_key(KeySpec<StringTable>, std::source_location);

const std::vector<KeyInfo>& all_keys() {
  keep_all_keys();
  return registry();
}

std::vector<std::size_t> keys_in_reading_order() {
  const auto& keys = all_keys();
  std::vector<std::size_t> order(keys.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto rank_a = section_rank(keys[a].section), rank_b = section_rank(keys[b].section);
    if (rank_a != rank_b) return rank_a < rank_b;
    if (keys[a].section != keys[b].section) return keys[a].section < keys[b].section;
    return keys[a].line < keys[b].line;
  });
  return order;
}

std::optional<std::size_t> find_key(const std::string& name) {
  const auto& keys = all_keys();
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i].name == name) return i;
  return std::nullopt;
}

bool is_section(const std::string& name) {
  for (const auto& key : all_keys())
    if (key.section == name || key.section.starts_with(name + ".")) return true;
  return false;
}

std::string rule_name(OnResume rule) {
  switch (rule) {
    case OnResume::free:
      return "free";
    case OnResume::told:
      return "told";
    case OnResume::phase:
      return "phase";
    case OnResume::stream:
      return "stream";
    case OnResume::refused:
      break;
  }
  return "refused";
}

std::string key_type_name(const KeyInfo& info) { return std::visit(TypeName{}, info.value); }

std::string key_range(const KeyInfo& info) {
  std::string text;
  if (!info.choices.empty()) {
    for (const auto& choice : info.choices) text += (text.empty() ? "" : ", ") + quoted(choice);
    if (info.or_number) text += " or a positive number";
    if (info.or_path) text += " or a path";
    return text;
  }
  if (info.min && info.max)
    text = limit_text(*info.min) + (info.min_open ? " < " : " <= ") + "x" + (info.max_open ? " < " : " <= ") +
           limit_text(*info.max);
  else if (info.min)
    text = (info.min_open ? "> " : ">= ") + limit_text(*info.min);
  else if (info.max)
    text = (info.max_open ? "< " : "<= ") + limit_text(*info.max);
  if (info.length) text = std::to_string(*info.length) + " values" + (text.empty() ? "" : ", each " + text);
  return text;
}

std::string key_default(const KeyInfo& info) {
  if (info.required) return "required";
  return info.derived.empty() ? toml_text(info.value) : info.derived;
}

std::string toml_text(const KeyValue& value) { return std::visit(ValueText{}, value); }

std::string number_text(double value) {
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";  // a TOML float, also where it is whole
  const auto e = text.find('e');
  if (e != std::string::npos) {  // 3e-04 -> 3e-4
    std::size_t digits = e + 1;
    if (text[digits] == '-' || text[digits] == '+') ++digits;
    while (text[digits] == '0' && digits + 1 < text.size()) text.erase(digits, 1);
  }
  return text;
}

std::string quoted(const std::string& text) {
  static const char* hex = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (u < 0x20 || u == 0x7f)
      ((out += "\\u00") += hex[u >> 4]) += hex[u & 15];
    else
      out += c;
  }
  return out + "\"";
}

}  // namespace orthant
