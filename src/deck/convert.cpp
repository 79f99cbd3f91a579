// One value of a deck: from TOML to the declared type, with its range check.
#include "deck/convert.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "deck/layout_reasons.hpp"
#include "deck/registry.hpp"

namespace orthant {

namespace fs = std::filesystem;

namespace {

std::optional<double> whole_number(const std::string& text) {
  double x = 0;
  const char* first = text.data();
  const char* last = first + text.size();
  if (first != last && *first == '+') ++first;
  const auto [end, error] = std::from_chars(first, last, x);
  if (error != std::errc() || end != last) return std::nullopt;
  return x;
}

bool looks_like_path(const std::string& text) { return text.find_first_of("/.") != std::string::npos; }

std::string absolute(const std::string& text, const fs::path& folder) {
  if (text.empty()) return text;
  auto path = (folder / text).lexically_normal();  // an absolute `text` replaces `folder`
  if (!path.has_filename() && path.has_relative_path()) path = path.parent_path();  // "a/b/" names the folder b
  return path.string();
}

/// Converts to the alternative that the key holds; `problem` says what was expected, without the key's name.
class Converter {
 public:
  Converter(const KeyInfo& info, const TomlValue& given, const fs::path& folder)
      : info_(info), given_(given), folder_(folder) {}

  std::string problem;
  bool ok = true;

  KeyValue operator()(bool) {
    if (given_.kind == TomlValue::boolean) return given_.as_boolean;
    return wrong("expects true or false"), false;
  }
  KeyValue operator()(int64_t) { return integer(given_); }
  KeyValue operator()(double) { return number(given_); }
  KeyValue operator()(const std::string&) { return text(given_); }
  KeyValue operator()(const std::vector<std::string>&) {
    return list<std::string>([this](const TomlValue& v) { return text(v); });
  }
  KeyValue operator()(const std::vector<double>&) {
    return list<double>([this](const TomlValue& v) { return number(v); });
  }
  KeyValue operator()(const std::vector<int64_t>&) {
    return list<int64_t>([this](const TomlValue& v) { return integer(v); });
  }
  KeyValue operator()(const StringTable&) {
    StringTable out;
    if (given_.kind != TomlValue::table) return wrong("expects a table of text, { name = \"value\" }"), out;
    for (const auto& [name, value] : given_.as_table) {
      if (value.kind == TomlValue::text)
        out[name] = value.as_text;
      else if (value.kind == TomlValue::integer || value.kind == TomlValue::boolean)
        out[name] = describe(value);
      else
        wrong("expects text for " + name);
    }
    return out;
  }

 private:
  void wrong(const std::string& expected) {
    ok = false;
    if (problem.empty()) problem = expected;
  }
  void outside(const std::string& unit_hint = "") {
    if (!problem.empty()) return;
    problem =
        "is out of range: " + key_range(info_) + (info_.unit.empty() ? "" : " (" + info_.unit + ")") + unit_hint;
  }
  void check_limits(double x) {
    if (info_.min && (info_.min_open ? x <= *info_.min : x < *info_.min)) outside();
    if (info_.max && (info_.max_open ? x >= *info_.max : x > *info_.max)) outside();
  }

  int64_t integer(const TomlValue& v) {
    int64_t x = 0;
    if (v.kind == TomlValue::integer) {
      x = v.as_integer;
    } else if (v.kind == TomlValue::number && std::floor(v.as_number) == v.as_number) {
      // 40e6 is how people write a large count; it is exact up to 2^53
      if (std::fabs(v.as_number) > 9007199254740992.0)
        return wrong("does not fit: an integer up to 2^53 in this notation"), 0;
      x = static_cast<int64_t>(v.as_number);
    } else if (v.kind == TomlValue::text && !v.as_text.empty() &&
               v.as_text.find_first_not_of("0123456789", v.as_text[0] == '-' || v.as_text[0] == '+') ==
                   std::string::npos &&
               v.as_text.size() > 18) {
      return wrong("does not fit into 64 bits"), 0;
    } else {
      return wrong("expects an integer" + expected_more()), 0;
    }
    check_limits(static_cast<double>(x));
    return x;
  }
  double number(const TomlValue& v) {
    double x = 0;
    if (v.kind == TomlValue::integer)
      x = static_cast<double>(v.as_integer);
    else if (v.kind == TomlValue::number)
      x = v.as_number;
    else
      return wrong("expects a number" + expected_more()), 0;
    if (!std::isfinite(x)) return wrong("expects a finite number" + expected_more()), 0;
    check_limits(x);
    return x;
  }
  std::string text(const TomlValue& v) {
    std::string x;
    if (info_.or_number && (v.kind == TomlValue::integer || v.kind == TomlValue::number)) {
      x = describe(v);
    } else if (v.kind == TomlValue::text) {
      x = v.as_text;
    } else {
      return wrong("expects text" + expected_more()), x;
    }
    if (x.find('\0') != std::string::npos) return wrong("holds a zero byte"), x;
    const bool chosen = std::find(info_.choices.begin(), info_.choices.end(), x) != info_.choices.end();
    if (chosen) return x;
    if (info_.or_number) {
      const auto value = whole_number(x);
      if (!value || !std::isfinite(*value) || *value <= 0) return wrong("is not among " + key_range(info_)), x;
      return x;
    }
    if (info_.or_path && looks_like_path(x)) return absolute(x, folder_);
    if (const auto reason = layout_reason(info_.name, x))
      return wrong(*reason + "; allowed: " + key_range(info_)), x;
    if (!info_.choices.empty()) return wrong("is not among " + key_range(info_)), x;
    return info_.is_path ? absolute(x, folder_) : x;
  }
  template <class T, class One>
  std::vector<T> list(One one) {
    std::vector<T> out;
    if (given_.kind == TomlValue::list)
      for (const auto& item : given_.as_list) out.push_back(one(item));
    else
      out.push_back(one(given_));  // a single value is a list of one
    if (problem.starts_with("expects a")) problem = "expects a " + key_type_name(info_) + expected_more();
    if (info_.length && out.size() != *info_.length)
      wrong("expects " + std::to_string(*info_.length) + " values, not " + std::to_string(out.size()));
    return out;
  }
  std::string expected_more() const {
    const auto range = key_range(info_);
    return (range.empty() ? "" : ", " + range) + (info_.unit.empty() ? "" : " (" + info_.unit + ")");
  }

  const KeyInfo& info_;
  const TomlValue& given_;
  const fs::path& folder_;
};

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::optional<TomlValue> as_toml(const std::string& text) {
  TomlValue root;
  if (text.find('\n') != std::string::npos || parse_toml("v = " + text, root) || root.as_table.size() != 1)
    return std::nullopt;
  return root.as_table.front().second;
}

TomlValue as_text(const std::string& text) {
  TomlValue out;
  out.kind = TomlValue::text;
  out.as_text = text;
  return out;
}

}  // namespace

Converted convert(const KeyInfo& info, const TomlValue& given, const fs::path& folder) {
  Converter converter(info, given, folder);
  Converted out;
  out.value = std::visit(converter, info.value);
  out.ok = converter.ok;
  if (!converter.problem.empty()) {
    const bool is = converter.problem.starts_with("is ");
    out.problem = info.name + " = " + describe(given) + (is ? " " : ": ") + converter.problem;
  }
  return out;
}

TomlValue override_value(const KeyInfo& info, const std::string& text) {
  const auto typed = as_toml(text);
  const bool list = std::holds_alternative<std::vector<std::string>>(info.value) ||
                    std::holds_alternative<std::vector<double>>(info.value) ||
                    std::holds_alternative<std::vector<int64_t>>(info.value);
  if (std::holds_alternative<std::string>(info.value)) {
    if (typed && typed->kind == TomlValue::text) return *typed;
    return as_text(text);  // a name may look like a number
  }
  if (!list) return typed ? *typed : as_text(text);
  if (typed && typed->kind == TomlValue::list) return *typed;
  if (typed && typed->kind == TomlValue::text) return *typed;
  // a,b or [a,b] without quotes
  std::string inner = trimmed(text);
  if (inner.size() >= 2 && inner.front() == '[' && inner.back() == ']') inner = inner.substr(1, inner.size() - 2);
  const bool texts = std::holds_alternative<std::vector<std::string>>(info.value);
  TomlValue out;
  out.kind = TomlValue::list;
  for (std::size_t start = 0; start <= inner.size();) {
    const auto comma = std::min(inner.find(',', start), inner.size());
    const std::string item = trimmed(inner.substr(start, comma - start));
    const auto value = as_toml(item);
    if (value && (!texts || value->kind == TomlValue::text))
      out.as_list.push_back(*value);
    else
      out.as_list.push_back(as_text(item));
    start = comma + 1;
  }
  return out;
}

}  // namespace orthant
