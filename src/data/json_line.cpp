// One document of a JSON-lines file.
#include "data/json_line.hpp"

#include <cstring>

namespace orthant {

namespace {

class Reader {
 public:
  Reader(std::string_view line, std::string_view key, std::string& text) : line_(line), key_(key), text_(text) {}

  int64_t run() {
    space();
    if (at_ == line_.size()) fail("the line is empty");
    if (line_[at_] != '{') fail("the line holds " + kind() + ", not a JSON object {…}");
    object(true);
    space();
    if (at_ != line_.size()) fail("something follows the object; each line holds exactly one");
    if (!found_)
      throw JsonLineError("key \"" + std::string(key_) + "\" is missing" +
                          (keys_.empty() ? "" : "; the keys are " + keys_) + " (--key chooses another)");
    return replaced_;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw JsonLineError("column " + std::to_string(at_ + 1) + ": " + why);
  }
  bool more() const { return at_ < line_.size(); }
  char peek() const { return more() ? line_[at_] : '\0'; }
  void space() {
    while (more() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r' || line_[at_] == '\n')) ++at_;
  }
  std::string kind() const {
    switch (peek()) {
      case '"':
        return "a string";
      case '[':
        return "a list";
      case '{':
        return "an object";
      case 't':
      case 'f':
        return "true or false";
      case 'n':
        return "null";
      default:
        return (peek() >= '0' && peek() <= '9') || peek() == '-' ? "a number" : "no JSON";
    }
  }
  void expect(char c, const char* where) {
    space();
    if (!more()) fail(std::string("the line ends where '") + c + "' must follow " + where + "; it is cut off");
    if (line_[at_] != c) fail(std::string("'") + c + "' must follow " + where);
    ++at_;
  }

  uint32_t hex4() {
    if (line_.size() - at_ < 4) fail("the line ends inside a \\u escape; it is cut off");
    uint32_t value = 0;
    for (int k = 0; k < 4; ++k, ++at_) {
      const char c = line_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("a \\u escape needs four hexadecimal digits");
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    return value;
  }

  static void put_utf8(std::string& to, uint32_t c) {
    if (c < 0x80) {
      to += static_cast<char>(c);
      return;
    }
    const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    to += static_cast<char>(((0xFF00 >> (more + 1)) & 0xFF) | c >> (6 * more));
    for (int k = more - 1; k >= 0; --k) to += static_cast<char>(0x80 | (c >> (6 * k) & 0x3F));
  }

  /// After the opening quote. `to` may be null: then the string is only checked.
  void string(std::string* to) {
    while (true) {
      size_t plain = at_;
      while (plain < line_.size() && line_[plain] != '"' && line_[plain] != '\\' &&
             static_cast<unsigned char>(line_[plain]) >= 0x20)
        ++plain;
      if (to != nullptr) to->append(line_.substr(at_, plain - at_));
      at_ = plain;
      if (!more()) fail("the line ends inside a string; it is cut off");
      const char c = line_[at_];
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character inside a string must be escaped");
      ++at_;
      if (c == '"') return;
      escape(to);
    }
  }

  void escape(std::string* to) {
    if (!more()) fail("the line ends inside a string; it is cut off");
    const char c = line_[at_++];
    uint32_t code = 0;
    if (c == 'u') {
      code = hex4();
      if (code >= 0xD800 && code < 0xE000) {
        const size_t back = at_;
        bool paired = false;
        if (code < 0xDC00 && line_.substr(at_, 2) == "\\u") {
          at_ += 2;
          const uint32_t low = hex4();
          paired = low >= 0xDC00 && low < 0xE000;
          if (paired) code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        if (!paired) {
          at_ = back;
          code = 0xFFFD;
          if (to == &text_) ++replaced_;
        }
      }
    } else {
      static constexpr char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
      const char* which = c == '\0' ? nullptr : std::strchr(from, c);
      if (which == nullptr) fail(std::string("\\") + c + " is no escape of JSON");
      code = static_cast<unsigned char>(into[which - from]);
    }
    if (to != nullptr) put_utf8(*to, code);
  }

  void object(bool top) {
    ++at_;  // {
    space();
    if (peek() == '}') {
      ++at_;
      return;
    }
    while (true) {
      space();
      if (!more()) fail("the line ends inside an object; it is cut off");
      if (peek() != '"') fail("a key in quotes must stand here");
      ++at_;
      name_.clear();
      string(top ? &name_ : nullptr);
      expect(':', "a key");
      space();
      if (top) {
        if (keys_.size() < 200) keys_ += (keys_.empty() ? "" : ", ") + name_;
        if (name_ == key_) {
          if (peek() != '"') fail("key \"" + name_ + "\" holds " + kind() + "; it must hold a string");
          ++at_;
          found_ = true;
          replaced_ = 0;
          text_.clear();
          string(&text_);
        } else {
          value(1);
        }
      } else {
        value(depth_);
      }
      space();
      if (peek() == ',') {
        ++at_;
        continue;
      }
      expect('}', "the last value of an object");
      return;
    }
  }

  void list() {
    ++at_;  // [
    space();
    if (peek() == ']') {
      ++at_;
      return;
    }
    while (true) {
      value(depth_);
      space();
      if (peek() == ',') {
        ++at_;
        continue;
      }
      expect(']', "the last value of a list");
      return;
    }
  }

  void value(int depth) {
    if (depth > 500) fail("values are nested more than 500 deep");
    const int before = depth_;
    depth_ = depth + 1;
    space();
    if (!more()) fail("the line ends where a value must stand; it is cut off");
    const char c = peek();
    if (c == '"') {
      ++at_;
      string(nullptr);
    } else if (c == '{') {
      object(false);
    } else if (c == '[') {
      list();
    } else {
      scalar();
    }
    depth_ = before;
  }

  void scalar() {
    // NaN and Infinity are no JSON, but Python's writer makes them; beside the text they do no harm
    for (const std::string_view word : {"true", "false", "null", "NaN", "Infinity", "-Infinity"})
      if (line_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return;
      }
    const size_t begin = at_;
    if (peek() == '-') ++at_;
    if (peek() == '0')
      ++at_;
    else
      digits(begin);
    if (peek() == '.') ++at_, digits(begin);
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits(begin);
    }
  }
  void digits(size_t begin) {
    if (peek() < '0' || peek() > '9') {
      at_ = begin;
      fail("no JSON value stands here");
    }
    while (peek() >= '0' && peek() <= '9') ++at_;
  }

  std::string_view line_, key_;
  std::string& text_;
  size_t at_ = 0;
  int depth_ = 0;
  bool found_ = false;
  int64_t replaced_ = 0;
  std::string name_, keys_;
};

}  // namespace

int64_t json_text(std::string_view line, std::string_view key, std::string& text) {
  return Reader(line, key, text).run();
}

bool valid_utf8(std::string_view text) {
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  const auto* end = at + text.size();
  while (at < end) {
    uint64_t eight = 0;
    if (end - at >= 8 && (std::memcpy(&eight, at, 8), (eight & 0x8080808080808080u) == 0)) {
      at += 8;
      continue;
    }
    const unsigned char c = *at;
    if (c < 0x80) {
      ++at;
      continue;
    }
    const int more = c >= 0xC2 && c <= 0xDF ? 1 : c >= 0xE0 && c <= 0xEF ? 2 : c >= 0xF0 && c <= 0xF4 ? 3 : 0;
    if (more == 0 || end - at <= more) return false;
    // the second byte also excludes overlong forms, surrogates and what lies above U+10FFFF
    const unsigned char low = c == 0xE0   ? 0xA0
                              : c == 0xF0 ? 0x90
                                          : 0x80,
                        high = c == 0xED   ? 0x9F
                               : c == 0xF4 ? 0x8F
                                           : 0xBF;
    if (at[1] < low || at[1] > high) return false;
    for (int k = 2; k <= more; ++k)
      if (at[k] < 0x80 || at[k] > 0xBF) return false;
    at += more + 1;
  }
  return true;
}

}  // namespace orthant
