// One document of a JSON-lines file: a strict reader of a single object that keeps one text and passes over the rest.
//
// Own code, as a document has to survive what JSON libraries refuse or replace: bytes that are not UTF-8 stay as they
// are. A \u escape of half a surrogate pair stands for no character and becomes U+FFFD, counted.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace orthant {

/// What is wrong with a line, without file and number: the caller knows those.
struct JsonLineError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Replaces `text` by the string under `key` (the last one, if the key comes twice). Returns how many half surrogates
/// were replaced. Throws JsonLineError.
int64_t json_text(std::string_view line, std::string_view key, std::string& text);

/// Whether all bytes form valid UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
bool valid_utf8(std::string_view text);

}  // namespace orthant
