// Lines of JSON files: what is a document, what is refused, and text that is not valid UTF-8.
// labels: smoke asan
#include <gtest/gtest.h>

#include <chrono>

#include "data/json_line.hpp"
#include "data/text_input.hpp"
#include "data_fixture.hpp"
#include "orthant/data.hpp"

namespace orthant {
namespace {

using testing::Scratch;

std::string text_of(std::string_view line, std::string_view key = "text") {
  std::string text;
  json_text(line, key, text);
  return text;
}

TEST(JsonLine, TextAmongOtherValues) {
  EXPECT_EQ(text_of(R"({"text":"abc"})"), "abc");
  EXPECT_EQ(text_of(R"( { "id" : -1.5e+3 , "text" : "a" , "m" : {"text":"no","l":[1,[],{},null,true,false,NaN]} } )"),
            "a");
  EXPECT_EQ(text_of(R"({"a":{"text":"inner"},"body":"x"})", "body"), "x");
  EXPECT_EQ(text_of(R"({"text":"first","text":"last"})"), "last");
  EXPECT_EQ(text_of("{\"text\":\"crlf\"}\r"), "crlf");
  EXPECT_EQ(text_of(R"({"text":""})"), "");
  EXPECT_EQ(text_of(R"({"t\u0065xt":"escaped key"})"), "escaped key");
}

TEST(JsonLine, Escapes) {
  EXPECT_EQ(text_of(R"({"text":"\"\\\/\b\f\n\r\t"})"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(text_of(R"({"text":"\u0041\u00e9\u20AC\ud83d\ude00"})"), "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(text_of(R"({"text":"\u0000"})"), std::string(1, '\0'));
}

// case O103: half surrogates are replaced and counted, invalid bytes are kept
TEST(JsonLine, TextThatIsNotUtf8) {
  std::string text;
  EXPECT_EQ(json_text(R"({"text":"a\ud800b"})", "text", text), 1);
  EXPECT_EQ(text,
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(json_text(R"({"text":"\ude00\ud83dx\ud83d\u0041"})", "text", text), 3);
  EXPECT_EQ(text,
            "\xEF\xBF\xBD\xEF\xBF\xBDx\xEF\xBF\xBD"
            "A");
  EXPECT_EQ(json_text(R"({"other":"\ud800","text":"x"})", "text", text), 0);
  for (const std::string bytes : {"\xFF", "\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80"}) {
    EXPECT_EQ(json_text("{\"text\":\"a" + bytes + "\"}", "text", text), 0);
    EXPECT_EQ(text, "a" + bytes);
    EXPECT_FALSE(valid_utf8(text));
  }
}

TEST(Utf8, ValidAndNot) {
  for (const char* good : {"", "abc", "abcdefghijkl", "\xC3\xA9", "\xE2\x82\xAC", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF", "abcdefg\xC3\xA9xyzabcdefgh"})
    EXPECT_TRUE(valid_utf8(good)) << good;
  for (const char* bad :
       {"\x80", "\xC0\xAF", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xE2\x82", "\xED\xA0\x80",
        "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFE", "abcdefgh\xC3", "\xE2\x28\xA1"})
    EXPECT_FALSE(valid_utf8(bad)) << bad;
}

// case O063: each bad line has its reason
TEST(JsonLine, BadLinesHaveReasons) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {R"({"text": 1})", "holds a number; it must hold a string"},
      {R"({"text": null})", "holds null"},
      {R"({"text": ["a"]})", "holds a list"},
      {R"("context")", "holds a string, not a JSON object"},
      {R"(["text"])", "holds a list, not a JSON object"},
      {"42", "holds a number, not a JSON object"},
      {"hello", "holds no JSON"},
      {R"({"txt":"x","id":3})", "key \"text\" is missing; the keys are txt, id"},
      {"{}", "key \"text\" is missing"},
      {R"({"text":"ab)", "inside a string; it is cut off"},
      {R"({"text":"ab")", "cut off"},
      {R"({"text":"a"}{"text":"b"})", "exactly one"},
      {R"({"text":"a"} x)", "exactly one"},
      {R"({"text":"a",})", "key in quotes"},
      {R"({"text":"a" "b":1})", "'}' must follow"},
      {R"({"text" "a"})", "':' must follow"},
      {R"({"text":"\x"})", "no escape"},
      {R"({"text":"\u12G4"})", "four hexadecimal digits"},
      {R"({"text":"\u12)", "cut off"},
      {"{\"text\":\"a\tb\"}", "control character"},
      {R"({"a":01,"text":"x"})", "must follow"},
      {R"({"a":-,"text":"x"})", "no JSON value"},
      {R"({"a":1.,"text":"x"})", "no JSON value"},
      {R"({"a":[1,],"text":"x"})", "no JSON value"},
      {R"({"a":,"text":"x"})", "no JSON value"},
      {"{\"a\":" + std::string(600, '[') + std::string(600, ']') + ",\"text\":\"x\"}", "nested more than 500"},
  };
  for (const auto& [line, reason] : bad) EXPECT_ERROR(JsonLineError, text_of(line), reason);
}

TEST(JsonLine, CutAnywhereIsRefused) {
  const std::string line = R"({"id":[1,{"a":null}],"text":"a\u00e9\ud83d\ude00\n"})";
  for (size_t n = 1; n < line.size(); ++n) EXPECT_THROW(text_of(line.substr(0, n)), JsonLineError) << n;
}

TEST(LineReader, AnyCutGivesEachLineOnce) {
  Scratch scratch;
  for (const std::string content : {"a\nbb\n\nccc\n", "a\nbb\nccc", "\n\n\n", "", "one line", "x\r\ny\r\n"}) {
    const InputFile file(scratch.text("t", content));
    std::vector<std::string> whole;
    std::string_view line;
    int64_t offset = 0;
    for (LineReader r(file, 0, file.size()); r.next(line, offset);) whole.emplace_back(line);
    for (int64_t cut = 0; cut <= file.size(); ++cut) {
      std::vector<std::string> parts;
      for (LineReader r(file, 0, cut); r.next(line, offset);) parts.emplace_back(line);
      for (LineReader r(file, cut, file.size()); r.next(line, offset);) parts.emplace_back(line);
      EXPECT_EQ(parts, whole) << content << " cut at " << cut;
    }
  }
}

// case O105: the time of a long line grows with its length, not with its square
TEST(LineReader, LongLines) {
  Scratch scratch;
  const std::string line = "{\"text\":\"" + std::string(20 << 20, 'a') + "\"}";
  const InputFile file(scratch.text("long", line + "\n" + line + "\nend"));
  LineReader reader(file, 0, file.size());
  std::string_view got;
  int64_t offset = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int k = 0; k < 2; ++k) {
    ASSERT_TRUE(reader.next(got, offset));
    EXPECT_EQ(text_of(got).size(), size_t{20} << 20);
  }
  ASSERT_TRUE(reader.next(got, offset));
  EXPECT_EQ(got, "end");
  EXPECT_EQ(line_number(file, offset), 3);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace orthant
