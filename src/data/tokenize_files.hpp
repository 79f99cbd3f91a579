// Text files -> one dataset, on any number of ranks; the result does not depend on how many.
#pragma once

#include <mpi.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "orthant/data.hpp"

namespace orthant {

struct TokenizeJob {
  const Tokenizer* tokenizer = nullptr;
  std::vector<std::string> files;  ///< in this order in the dataset
  std::string output;              ///< prefix
  std::string key = "text";        ///< of JSON lines
  std::optional<int32_t> eod;      ///< appended to every document; without it empty documents are dropped
};

/// What was done, summed over ranks.
struct TokenizeCounts {
  int64_t documents = 0, tokens = 0;
  int64_t empty = 0;          ///< documents without text: a lone end of document, or dropped
  int64_t blank_lines = 0;    ///< lines of white space only, passed over
  int64_t marks = 0;          ///< files whose byte-order mark was passed over
  int64_t invalid = 0;        ///< documents with bytes that are not UTF-8 (kept)
  int64_t surrogates = 0;     ///< half surrogate pairs replaced by U+FFFD
  std::string first_invalid;  ///< "file:line" of the first document with such bytes
  TokenType type = TokenType::u16;
};

/// Collective. The bytes of all inputs are cut into equal ranges; a document belongs to the rank in whose range it
/// begins. Each rank writes a part, then copies it to its place in the common file. Errors are agreed: the first bad
/// line in input order is reported (DataError with file and line), whatever the number of ranks, and no file is left.
TokenizeCounts tokenize_files(const TokenizeJob& job, MPI_Comm comm);

/// Joins datasets in the given order; all documents, and sequences within them, are kept. Not collective. Equal token
/// types stay; else u16 if every source fits it, or i32.
struct MergeCounts {
  int64_t documents = 0, sequences = 0, tokens = 0;
  TokenType type = TokenType::i32;
};
MergeCounts merge_datasets(const std::vector<std::string>& prefixes, const std::string& output);

/// Writes the text of all documents, one behind the other as they were read (ends of documents have no text).
void decode_dataset(const std::string& prefix, const Tokenizer& tokenizer, std::ostream& out);

}  // namespace orthant
