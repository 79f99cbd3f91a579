// Datasets joined, and turned back into text.
#include <algorithm>
#include <filesystem>

#include "data/tokenize_files.hpp"
#include "orthant/error.hpp"

namespace orthant {

static constexpr int64_t piece_tokens = int64_t{1} << 20;

/// Calls `use(tokens, n)` with the tokens of a sequence, a piece at a time.
template <typename Use>
static void for_pieces(const IndexedDataset& data, int64_t sequence, std::vector<int32_t>& buffer, Use use) {
  const int64_t length = data.length(sequence);
  for (int64_t at = 0; at < length; at += piece_tokens) {
    const int64_t n = std::min(piece_tokens, length - at);
    buffer.resize(static_cast<size_t>(n));
    data.read(sequence, at, n, buffer.data());
    use(buffer.data(), n);
  }
}

MergeCounts merge_datasets(const std::vector<std::string>& prefixes, const std::string& output) {
  if (prefixes.empty()) throw UsageError("tokenize --merge: give the prefixes of the datasets to join");
  MergeCounts counts;
  bool same = true, narrow = true;
  for (size_t k = 0; k < prefixes.size(); ++k) {
    std::error_code ignored;
    if (std::filesystem::equivalent(prefixes[k] + ".bin", output + ".bin", ignored))
      throw UsageError("tokenize --merge: " + prefixes[k] +
                       " is both an input and the output; choose another --output");
    const TokenType type = IndexedDataset(prefixes[k]).type();
    if (k == 0) counts.type = type;
    same = same && type == counts.type;
    narrow = narrow && (type == TokenType::u8 || type == TokenType::u16);
  }
  if (!same) counts.type = narrow ? TokenType::u16 : TokenType::i32;

  IndexedWriter writer(output, counts.type);
  std::vector<int32_t> buffer;
  for (const auto& prefix : prefixes) {
    const IndexedDataset data(prefix);
    for (int64_t d = 0; d < data.documents(); ++d) {
      for (int64_t s = data.document_begin(d); s < data.document_begin(d + 1); ++s) {
        for_pieces(data, s, buffer, [&](const int32_t* tokens, int64_t n) { writer.append(tokens, n); });
        writer.end_sequence();
      }
      writer.end_document();
    }
    counts.documents += data.documents();
    counts.sequences += data.sequences();
    counts.tokens += data.tokens();
  }
  writer.finish();
  return counts;
}

void decode_dataset(const std::string& prefix, const Tokenizer& tokenizer, std::ostream& out) {
  const IndexedDataset data(prefix);
  std::vector<int32_t> buffer;
  std::string text;
  for (int64_t s = 0; s < data.sequences(); ++s)
    for_pieces(data, s, buffer, [&](const int32_t* tokens, int64_t n) {
      text.clear();
      try {
        tokenizer.decode(tokens, n, text);
      } catch (const DataError& error) {
        throw DataError(prefix + ".bin: document " + std::to_string(data.document_of(s)) + ": " + error.what());
      }
      out.write(text.data(), static_cast<std::streamsize>(text.size()));
    });
  out.flush();
  if (!out) throw DataError(prefix + ": its text could not be written to standard output");
}

}  // namespace orthant
