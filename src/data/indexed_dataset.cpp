// Reader of .bin/.idx datasets: everything is checked once at opening, so that reading needs no checks.
#include <cstring>
#include <limits>

#include "data/index_format.hpp"
#include "data/mapped_file.hpp"
#include "orthant/data.hpp"
#include "orthant/error.hpp"

namespace orthant {

using index_format::load;
using std::to_string;

namespace {

std::string without_suffix_hint(const std::string& prefix) {
  for (const char* end : {".bin", ".idx"})
    if (prefix.size() > 4 && prefix.compare(prefix.size() - 4, 4, end) == 0)
      return " (a dataset is named by its prefix: leave " + std::string(end) + " off)";
  return "";
}

std::unique_ptr<MappedFile> open_half(const std::string& prefix, const char* end) {
  try {
    return std::make_unique<MappedFile>(prefix + end);
  } catch (const DataError& error) {
    throw DataError(error.what() + without_suffix_hint(prefix) + "; a dataset needs both " + prefix + ".bin and " +
                    prefix + ".idx");
  }
}

template <typename T>
void widen(const char* from, int64_t n, int32_t* out) {
  for (int64_t k = 0; k < n; ++k) out[k] = static_cast<int32_t>(load<T>(from + k * static_cast<int64_t>(sizeof(T))));
}

}  // namespace

IndexedDataset::IndexedDataset(const std::string& prefix) : prefix_(prefix) {
  index_ = open_half(prefix, ".idx");
  bin_ = open_half(prefix, ".bin");
  check_header();
  check_tables();
}

IndexedDataset::~IndexedDataset() = default;

void IndexedDataset::check_header() {
  const std::string& file = index_->path();
  const char* at = index_->data();
  const int64_t size = index_->size();
  if (size < index_format::header_bytes)
    throw DataError(file + ": is " + to_string(size) + " bytes long, but the header alone needs " +
                    to_string(index_format::header_bytes) + "; the file is truncated or no dataset index");
  if (std::memcmp(at, index_format::magic, sizeof index_format::magic) != 0) {
    const bool old = std::memcmp(at, "TNTIDX", 6) == 0;
    throw DataError(file + ": field magic is not MMIDIDX" +
                    (old ? " but TNTIDX, the older cached format; tokenise the text again"
                         : "; this is no Megatron dataset index"));
  }
  const auto version = load<uint64_t>(at + 9);
  if (version != index_format::version)
    throw DataError(file + ": field version is " + to_string(version) + "; only version 1 exists");
  const auto code = load<uint8_t>(at + 17);
  if (code == 6 || code == 7)
    throw DataError(file + ": field token type is " + to_string(code) + " (" + (code == 6 ? "float64" : "float32") +
                    "); tokens must be integers: codes 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16");
  if (code < 1 || code > 8)
    throw DataError(file + ": field token type is " + to_string(code) +
                    "; known codes are 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16");
  type_ = static_cast<TokenType>(code);

  const auto sequences = load<uint64_t>(at + 18), boundaries = load<uint64_t>(at + 26);
  const auto room = static_cast<uint64_t>(size - index_format::header_bytes);
  if (sequences > room / 12 || boundaries > room / 8 || sequences * 12 + boundaries * 8 > room)
    throw DataError(file + ": is truncated: fields sequences = " + to_string(sequences) +
                    " and boundaries = " + to_string(boundaries) +
                    " need 34 + 12 x sequences + 8 x boundaries bytes, the file has " + to_string(size));
  const uint64_t rest = room - (sequences * 12 + boundaries * 8);
  if (rest != 0)
    throw DataError(file + ": has " + to_string(rest) + " bytes after its tables (sequences = " +
                    to_string(sequences) + ", boundaries = " + to_string(boundaries) + ")" +
                    (rest == sequences ? ": one mode byte a sequence, a multimodal dataset, which is not supported"
                                       : "; its length must be 34 + 12 x sequences + 8 x boundaries"));
  if (sequences == 0 || boundaries < 2)
    throw DataError(file + ": is an empty dataset (sequences = " + to_string(sequences) +
                    ", boundaries = " + to_string(boundaries) + "); it must hold at least one document");
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(boundaries) - 1;
  lengths_ = at + index_format::header_bytes;
  offsets_ = lengths_ + 4 * sequences_;
  boundaries_ = offsets_ + 8 * sequences_;
}

void IndexedDataset::check_tables() {
  const std::string& file = index_->path();
  const int64_t bytes = bin_->size(), width = token_bytes(type_);
  int64_t end = 0;
  for (int64_t s = 0; s < sequences_; ++s) {
    const int64_t n = length(s), from = byte_offset(s);
    if (n < 0)
      throw DataError(file + ": field lengths[" + to_string(s) + "] is " + to_string(n) +
                      "; a length is never negative");
    if (from < 0)
      throw DataError(file + ": field offsets[" + to_string(s) + "] is " + to_string(from) +
                      "; offsets are never negative (written by a tool that computed them in 32 bits?)");
    if (from > bytes || n > (bytes - from) / width)
      throw DataError(file + ": sequence " + to_string(s) + " (offset " + to_string(from) + ", " + to_string(n) +
                      " tokens of " + to_string(width) + " bytes) ends after " + bin_->path() + ", which is " +
                      to_string(bytes) + " bytes long; that file is truncated or belongs to another index");
    tokens_ += n;
    end = std::max(end, from + n * width);
  }
  if (end != bytes)
    throw DataError(bin_->path() + ": is " + to_string(bytes) + " bytes long, but " + file + " describes " +
                    to_string(end) + " bytes of " + token_type_name(type_) +
                    " tokens; the two files do not belong together");
  if (tokens_ == 0)
    throw DataError(file + ": all " + to_string(sequences_) + " sequences are empty; there is nothing to read");
  int64_t before = 0;
  for (int64_t d = 0; d <= documents_; ++d) {
    const int64_t here = document_begin(d);
    const std::string field = file + ": field boundaries[" + to_string(d) + "] is " + to_string(here);
    if (d == 0 && here != 0) throw DataError(field + "; the first document starts at sequence 0");
    if (here < before) throw DataError(field + " after " + to_string(before) + "; document boundaries never go back");
    before = here;
  }
  if (before != sequences_)
    throw DataError(file + ": field boundaries[" + to_string(documents_) + "] is " + to_string(before) +
                    "; the last one must be the number of sequences, " + to_string(sequences_));
}

int64_t IndexedDataset::length(int64_t sequence) const { return load<int32_t>(lengths_ + 4 * sequence); }
int64_t IndexedDataset::byte_offset(int64_t sequence) const { return load<int64_t>(offsets_ + 8 * sequence); }
int64_t IndexedDataset::document_begin(int64_t document) const { return load<int64_t>(boundaries_ + 8 * document); }

int64_t IndexedDataset::document_of(int64_t sequence) const {
  int64_t low = 0, high = documents_;  // the last document that begins at or before `sequence`: skips empty ones
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= sequence ? low : high) = middle;
  }
  return low;
}

void IndexedDataset::read(int64_t sequence, int64_t offset, int64_t n, int32_t* out) const {
  ORTHANT_ENSURE(sequence >= 0 && sequence < sequences_, prefix_ + ": no sequence " + to_string(sequence));
  ORTHANT_ENSURE(
      offset >= 0 && n >= 0 && n <= length(sequence) - offset,
      prefix_ + ": tokens " + to_string(offset) + " + " + to_string(n) + " of sequence " + to_string(sequence));
  const char* from = bin_->data() + byte_offset(sequence) + offset * token_bytes(type_);
  switch (type_) {
    case TokenType::u8:
      widen<uint8_t>(from, n, out);
      return;
    case TokenType::i8:
      widen<int8_t>(from, n, out);
      return;
    case TokenType::i16:
      widen<int16_t>(from, n, out);
      return;
    case TokenType::u16:
      widen<uint16_t>(from, n, out);
      return;
    case TokenType::i32:
      if (n > 0) std::memcpy(out, from, static_cast<size_t>(n) * sizeof(int32_t));
      return;
    case TokenType::i64:
      break;
  }
  for (int64_t k = 0; k < n; ++k) {
    const auto wide = load<int64_t>(from + 8 * k);
    if (wide < std::numeric_limits<int32_t>::min() || wide > std::numeric_limits<int32_t>::max())
      throw DataError(bin_->path() + ": token " + to_string(offset + k) + " of sequence " + to_string(sequence) +
                      " (document " + to_string(document_of(sequence)) + ") is " + to_string(wide) +
                      "; ids above 2147483647 are not supported");
    out[k] = static_cast<int32_t>(wide);
  }
}

}  // namespace orthant
