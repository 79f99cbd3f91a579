// Tokenizers by name.
#include "orthant/data.hpp"
#include "orthant/error.hpp"

namespace orthant {

namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  int64_t vocab() const override { return end_ + 1; }
  std::optional<int32_t> eod() const override { return end_; }
  std::optional<int32_t> find(std::string_view) const override { return std::nullopt; }  // bytes have no spellings
  bool cuts_anywhere() const override { return true; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    const size_t before = ids.size();
    ids.resize(before + text.size());
    for (size_t k = 0; k < text.size(); ++k) ids[before + k] = static_cast<unsigned char>(text[k]);
  }

  void decode(const int32_t* ids, int64_t n, std::string& text) const override {
    for (int64_t k = 0; k < n; ++k) {
      if (ids[k] < 0 || ids[k] > end_)
        throw DataError("token " + std::to_string(ids[k]) +
                        " is outside the vocabulary of the tokenizer bytes (0 to 256)");
      if (ids[k] != end_) text += static_cast<char>(ids[k]);
    }
  }

 private:
  static constexpr int32_t end_ = 256;
};

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec) {
  if (spec == "bytes") return std::make_unique<ByteTokenizer>();
  const std::string known = "; this build knows the tokenizer \"bytes\" (token = byte, 256 = end of document)";
  if (ends_with(spec, ".model"))
    throw UsageError("tokenizer " + spec + ": SentencePiece models are not in this build yet" + known);
  if (ends_with(spec, ".json"))
    throw UsageError("tokenizer " + spec + ": Hugging Face tokenizer.json is not in this build yet" + known);
  throw UsageError("tokenizer \"" + spec +
                   "\" is unknown: SentencePiece models and tokenizer.json are not in this build yet" + known);
}

}  // namespace orthant
