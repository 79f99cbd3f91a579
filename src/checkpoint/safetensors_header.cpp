// See safetensors_header.hpp. The parser calls back for every token; anything the format does not allow ends it.
#include "checkpoint/safetensors_header.hpp"

#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>
#include <utility>

#include "orthant/error.hpp"

namespace orthant {

namespace {

constexpr std::pair<const char*, int> file_dtypes[] = {
    {"BOOL", 8},    {"U8", 8},      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F4", 4},
    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U16", 16}, {"I16", 16},    {"F16", 16},    {"BF16", 16},   {"U32", 32},
    {"I32", 32},    {"F32", 32},    {"U64", 64}, {"I64", 64},    {"F64", 64},    {"C64", 64}};

std::string shorten(const std::string& text) { return text.size() <= 80 ? text : text.substr(0, 77) + "..."; }

// States follow the only legal nesting: { name: { dtype, shape: [..], data_offsets: [..] }, __metadata__: {..} }.
class Handler : public nlohmann::json_sax<nlohmann::json> {
 public:
  Handler(const std::string& path, SafetensorsHeader& out) : path_(path), out_(out) {}
  bool ended() const { return state_ == State::after; }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::before:
        state_ = State::names;
        return true;
      case State::value_of_name:
        if (entry_.name == "__metadata__") {
          state_ = State::metadata;
          metadata_names_.clear();
        } else {
          state_ = State::fields;
          have_dtype_ = have_shape_ = have_offsets_ = false;
        }
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    switch (state_) {
      case State::names:
        if (!seen_.insert(name).second) fail("the tensor \"" + shorten(name) + "\" is listed twice");
        entry_ = TensorEntry{};
        entry_.name = name;
        state_ = State::value_of_name;
        return true;
      case State::fields:
        field_ = name;
        return begin_field();
      case State::metadata:
        if (!metadata_names_.insert(name).second) fail("__metadata__ holds \"" + shorten(name) + "\" twice");
        field_ = name;
        state_ = State::metadata_value;
        return true;
      default:
        return unexpected("a name");
    }
  }

  bool string(string_t& value) override {
    if (state_ == State::metadata_value) {
      out_.metadata[field_] = value;
      state_ = State::metadata;
      return true;
    }
    if (state_ != State::dtype) return unexpected("the string \"" + shorten(value) + "\"");
    if (bits_of_file_dtype(value) == 0) {
      fail_tensor("has the unknown dtype \"" + shorten(value) + "\"; weights may be F32, F16, BF16 or F64");
    }
    entry_.dtype = value;
    state_ = State::fields;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::shape)
      state_ = State::shape_items;
    else if (state_ == State::offsets)
      state_ = State::offset_items;
    else
      return unexpected("a list");
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::shape_items && state_ != State::offset_items) return unexpected(std::to_string(value));
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max())) {
      fail_tensor(field_ + " holds " + std::to_string(value) + ", more than any file can have");
    }
    if (state_ == State::shape_items) {
      if (entry_.shape.size() == 64) fail_tensor("has more than 64 dims");
      entry_.shape.push_back(static_cast<int64_t>(value));
    } else {
      if (offset_count_ == 2) fail_tensor("data_offsets has more than two numbers; [begin, end] is right");
      offsets_[offset_count_++] = static_cast<int64_t>(value);
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::offset_items) {
      if (offset_count_ != 2) fail_tensor("data_offsets has fewer than two numbers; [begin, end] is right");
      entry_.begin = offsets_[0];
      entry_.end = offsets_[1];
    }
    state_ = State::fields;
    return true;
  }

  bool end_object() override {
    switch (state_) {
      case State::fields:
        finish_entry();
        state_ = State::names;
        return true;
      case State::metadata:
        state_ = State::names;
        return true;
      default:
        state_ = State::after;
        return true;
    }
  }

  bool number_integer(number_integer_t value) override { return bad_number(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return bad_number(shorten(text)); }
  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    fail("not valid JSON at byte " + std::to_string(position) + " (" + e.what() + ")");
  }

 private:
  enum class State {
    before,
    names,
    value_of_name,
    fields,
    dtype,
    shape,
    shape_items,
    offsets,
    offset_items,
    metadata,
    metadata_value,
    after
  };

  [[noreturn]] void fail(const std::string& what) const { throw DataError(path_ + ": safetensors header: " + what); }
  [[noreturn]] void fail_tensor(const std::string& what) const {
    throw DataError(path_ + ": tensor \"" + shorten(entry_.name) + "\" " + what);
  }
  bool bad_number(const std::string& text) const {
    if (state_ == State::shape_items || state_ == State::offset_items) {
      fail_tensor(field_ + " holds " + text + "; whole numbers from 0 are right");
    }
    return unexpected(text);
  }
  bool unexpected(const std::string& what) const {
    switch (state_) {
      case State::before:
        fail("begins with " + what + "; an object {...} is right");
      case State::value_of_name:
        fail_tensor("is " + what + "; {\"dtype\", \"shape\", \"data_offsets\"} is right");
      case State::metadata_value:
        fail("__metadata__ entry \"" + shorten(field_) + "\" is " + what + "; only strings are allowed");
      default:
        fail_tensor((field_.empty() ? std::string("entry") : field_) + " holds " + what + " where it may not");
    }
  }

  bool begin_field() {
    bool* have = nullptr;
    if (field_ == "dtype")
      have = &have_dtype_, state_ = State::dtype;
    else if (field_ == "shape")
      have = &have_shape_, state_ = State::shape;
    else if (field_ == "data_offsets")
      have = &have_offsets_, state_ = State::offsets, offset_count_ = 0;
    else
      fail_tensor("has the unknown field \"" + shorten(field_) + "\"; dtype, shape, data_offsets are right");
    if (*have) fail_tensor("has the field " + field_ + " twice");
    *have = true;
    return true;
  }

  void finish_entry() {
    if (!have_dtype_) fail_tensor("has no dtype");
    if (!have_shape_) fail_tensor("has no shape");
    if (!have_offsets_) fail_tensor("has no data_offsets");
    int64_t elements = 1;
    bool empty = false, overflow = false;
    for (int64_t n : entry_.shape) {
      empty |= n == 0;
      overflow |= __builtin_mul_overflow(elements, n, &elements);
    }
    int64_t bits = 0;
    if (empty) overflow = false, elements = 0;
    overflow = overflow || __builtin_mul_overflow(elements, bits_of_file_dtype(entry_.dtype), &bits);
    if (overflow) fail_tensor("has the shape " + entry_.shape_text() + ", more bytes than any file can have");
    if (bits % 8 != 0)
      fail_tensor("of dtype " + entry_.dtype + " and shape " + entry_.shape_text() + " does not fill whole bytes");
    const std::string range = std::string("[").append(std::to_string(entry_.begin)).append(", ").append(std::to_string(entry_.end)).append("]");
    if (entry_.end < entry_.begin) fail_tensor("has data_offsets " + range + ", which end before they begin");
    if (entry_.end - entry_.begin != bits / 8) {
      fail_tensor("has data_offsets " + range + " (" + std::to_string(entry_.end - entry_.begin) + " bytes), but " +
                  entry_.dtype + " " + entry_.shape_text() + " needs " + std::to_string(bits / 8) + " bytes");
    }
    out_.entries.push_back(std::move(entry_));
    field_.clear();
  }

  const std::string& path_;
  SafetensorsHeader& out_;
  State state_ = State::before;
  TensorEntry entry_;
  std::string field_;
  std::array<int64_t, 2> offsets_{};
  int offset_count_ = 0;
  bool have_dtype_ = false, have_shape_ = false, have_offsets_ = false;
  std::unordered_set<std::string> seen_;
  std::set<std::string> metadata_names_;
};

}  // namespace

int bits_of_file_dtype(const std::string& dtype) {
  for (const auto& [name, bits] : file_dtypes) {
    if (dtype == name) return bits;
  }
  return 0;
}

SafetensorsHeader parse_safetensors_header(const char* text, size_t length, const std::string& path) {
  if (length == 0 || text[0] != '{') {
    throw DataError(path + ": the safetensors header is not a JSON object (it must begin with '{')");
  }
  // the parser takes a NUL for the end of its input and would ignore what follows
  if (std::memchr(text, 0, length)) throw DataError(path + ": the safetensors header contains a zero byte");
  SafetensorsHeader out;
  Handler handler(path, out);
  const bool parsed = nlohmann::json::sax_parse(text, text + length, &handler);
  if (!parsed || !handler.ended()) throw DataError(path + ": the safetensors header is not a whole JSON object");
  return out;
}

}  // namespace orthant
