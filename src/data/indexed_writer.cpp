// Writer of .bin/.idx datasets.
#include <limits>

#include "data/token_file.hpp"
#include "orthant/data.hpp"
#include "orthant/error.hpp"

namespace orthant {

IndexedWriter::IndexedWriter(const std::string& prefix, TokenType type)
    : prefix_(prefix), type_(type), bin_(std::make_unique<TokenFile>(writing_name(prefix, ".bin"), type)) {}

IndexedWriter::~IndexedWriter() = default;  // TokenFile removes itself unless it was kept

void IndexedWriter::append(const int32_t* tokens, int64_t n) {
  if (open_ > std::numeric_limits<int32_t>::max() - n)
    throw DataError(prefix_ + ".idx: sequence " + std::to_string(lengths_.size()) +
                    " would pass 2147483647 tokens, the most the format can hold; cut the document into parts");
  bin_->append(tokens, n);
  open_ += n;
}

void IndexedWriter::end_sequence() {
  lengths_.push_back(static_cast<int32_t>(open_));
  open_ = 0;
}

void IndexedWriter::end_document() {
  ORTHANT_ENSURE(open_ == 0, "end_document inside a sequence of " + prefix_);
  boundaries_.push_back(static_cast<int64_t>(lengths_.size()));
}

void IndexedWriter::finish() {
  ORTHANT_ENSURE(open_ == 0 && boundaries_.back() == static_cast<int64_t>(lengths_.size()),
                 "finish inside a document of " + prefix_);
  bin_->close();
  const std::string index = writing_name(prefix_, ".idx");
  write_index(index, type_, lengths_, boundaries_);
  try {
    publish(prefix_);
  } catch (...) {
    remove_unfinished(prefix_);
    throw;
  }
  bin_->keep();
}

}  // namespace orthant
