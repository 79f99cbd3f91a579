// TOML text as plain values. The only file that includes the TOML library.
#include "deck/toml_text.hpp"

#include <algorithm>

#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "deck/registry.hpp"

namespace orthant {

static TomlValue plain(const toml::node& node) {
  TomlValue out;
  out.line = static_cast<int>(node.source().begin.line);
  if (const auto* b = node.as_boolean()) {
    out.kind = TomlValue::boolean;
    out.as_boolean = b->get();
  } else if (const auto* i = node.as_integer()) {
    out.kind = TomlValue::integer;
    out.as_integer = i->get();
  } else if (const auto* d = node.as_floating_point()) {
    out.kind = TomlValue::number;
    out.as_number = d->get();
  } else if (const auto* s = node.as_string()) {
    out.kind = TomlValue::text;
    out.as_text = s->get();
  } else if (const auto* list = node.as_array()) {
    out.kind = TomlValue::list;
    for (const auto& item : *list) out.as_list.push_back(plain(item));
  } else if (const auto* table = node.as_table()) {
    out.kind = TomlValue::table;
    for (const auto& [key, value] : *table) {
      out.as_table.emplace_back(std::string(key.str()), plain(value));
      out.as_table.back().second.line = static_cast<int>(key.source().begin.line);
    }
    // the library sorts by name; people think in the order they wrote
    std::stable_sort(out.as_table.begin(), out.as_table.end(),
                     [](const auto& a, const auto& b) { return a.second.line < b.second.line; });
  }
  return out;
}

std::optional<std::string> parse_toml(const std::string& text, TomlValue& root) {
  try {
    root = plain(toml::parse(text));
    return std::nullopt;
  } catch (const toml::parse_error& error) {
    const auto at = error.source().begin;
    return std::to_string(at.line) + ":" + std::to_string(at.column) + ": " + std::string(error.description());
  }
}

std::string describe(const TomlValue& value) {
  switch (value.kind) {
    case TomlValue::boolean:
      return value.as_boolean ? "true" : "false";
    case TomlValue::integer:
      return std::to_string(value.as_integer);
    case TomlValue::number:
      return number_text(value.as_number);
    case TomlValue::text:
      return quoted(value.as_text);
    case TomlValue::list: {
      std::string text = "[";
      for (std::size_t i = 0; i < value.as_list.size(); ++i) text += (i ? ", " : "") + describe(value.as_list[i]);
      return text + "]";
    }
    case TomlValue::table:
      return "{…}";
    case TomlValue::other:
      break;
  }
  return "a date or time";
}

}  // namespace orthant
