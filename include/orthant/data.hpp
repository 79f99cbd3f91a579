// Token datasets, the order in which training reads them, and tokenizers.
//
// A dataset is a pair PREFIX.bin (raw tokens) and PREFIX.idx (lengths, offsets, document boundaries), the format
// that Megatron-LM writes. A sample is a row of sequence + 1 tokens: inputs are its first `sequence` tokens, labels
// its last `sequence`; neighbouring samples of a source share one token. Which sample is where depends on the
// settings alone, never on the mesh: the trainer cuts the global stream into ranks.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

class MappedFile;
class TokenFile;

/// How a token is stored in a .bin file; the values are the codes of the .idx header.
enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

int64_t token_bytes(TokenType type);
const char* token_type_name(TokenType type);
/// u16 for vocabularies below 65500, else i32: the rule of Megatron's writer, so that files compare equal.
TokenType token_type_for(int64_t vocab);

/// A dataset on disk, memory-mapped and read-only; any number of threads may read. Opening checks the whole index
/// and throws DataError (file, field, value, what would be right).
class IndexedDataset {
 public:
  explicit IndexedDataset(const std::string& prefix);
  ~IndexedDataset();
  IndexedDataset(const IndexedDataset&) = delete;
  IndexedDataset& operator=(const IndexedDataset&) = delete;

  const std::string& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  int64_t documents() const { return documents_; }
  int64_t sequences() const { return sequences_; }
  int64_t tokens() const { return tokens_; }
  /// Tokens of a sequence.
  int64_t length(int64_t sequence) const;
  /// First sequence of a document; `document == documents()` gives sequences().
  int64_t document_begin(int64_t document) const;
  int64_t document_of(int64_t sequence) const;
  /// Copies `n` tokens from `offset` of a sequence. A token that does not fit into int32 is a DataError.
  void read(int64_t sequence, int64_t offset, int64_t n, int32_t* out) const;

 private:
  void check_header();
  void check_tables();
  int64_t byte_offset(int64_t sequence) const;

  std::string prefix_;
  std::unique_ptr<MappedFile> index_, bin_;
  TokenType type_ = TokenType::i32;
  int64_t documents_ = 0, sequences_ = 0, tokens_ = 0;
  const char* lengths_ = nullptr;  // the three tables are not aligned: read them with memcpy only
  const char* offsets_ = nullptr;
  const char* boundaries_ = nullptr;
};

/// Writes a dataset under temporary names; `finish` syncs and renames. Without `finish` nothing is left behind.
/// A write that fails (full disk, quota) is a DataError, and the partial files are removed.
class IndexedWriter {
 public:
  IndexedWriter(const std::string& prefix, TokenType type);
  ~IndexedWriter();
  IndexedWriter(const IndexedWriter&) = delete;
  IndexedWriter& operator=(const IndexedWriter&) = delete;

  /// Adds tokens to the open sequence; one that the type cannot hold is a DataError.
  void append(const int32_t* tokens, int64_t n);
  void end_sequence();
  /// Ends the document after the sequences ended so far (none of them new: an empty document).
  void end_document();
  void finish();

 private:
  std::string prefix_;
  TokenType type_;
  std::unique_ptr<TokenFile> bin_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> boundaries_{0};
  int64_t open_ = 0;  // tokens of the open sequence
};

/// Other weights from a sample on; each source goes on with its next sample, so none comes twice and none is left out.
struct WeightChange {
  int64_t first_sample = 0;
  std::vector<double> weights;  ///< as DataSettings::weights
  bool operator==(const WeightChange&) const = default;
};

/// What fixes a stream of samples. Paths are prefixes, absolute or relative to the working folder.
struct DataSettings {
  std::vector<std::string> train;
  std::vector<double> weights;     ///< one per train prefix; empty: in proportion to tokens
  std::vector<std::string> valid;  ///< empty: the split's second part of `train`
  int64_t sequence = 0;            ///< tokens of a sample, without the extra label
  std::string split = "969,30,1";
  int64_t seed = 1234;
  int64_t samples = 0;  ///< N: fixes the number of epochs and so their order
  std::vector<WeightChange> changes;   ///< of a training stream under way, by first_sample
  std::vector<int64_t> order_samples;  ///< samples that the order of each training source is laid out for, where that
                                       ///< is known from an earlier life; empty: its share of N
};

/// A source of a stream, in numbers.
struct SourceFacts {
  int64_t documents = 0, tokens = 0;  ///< of the whole dataset
  int64_t part_tokens = 0;            ///< of the part (training or validation) that the stream reads
  int64_t order_samples = 0;          ///< samples that its order was laid out for
  int64_t epochs = 0, available = 0;  ///< passes over the part that this takes, and the samples that they hold
};

/// A run of tokens in a sample: where it comes from.
struct SamplePiece {
  int64_t source;    ///< number of the prefix
  int64_t document;  ///< document of that dataset, from 0
  int64_t sequence;
  int64_t offset;  ///< first token within the sequence
  int64_t tokens;
};

class SourceOrder;
class Blend;

/// The samples in the order in which steps take them: Megatron-core's GPTDataset and BlendedDataset order.
class SampleStream {
 public:
  /// The first part of the split of `settings.train`, `settings.samples` long. UsageError for bad settings,
  /// DataError for bad files and for sources too small for one sample.
  static SampleStream train(const DataSettings& settings);
  /// The whole of `settings.valid` if given (mixed in proportion to tokens), else the second part of the split.
  static SampleStream valid(const DataSettings& settings, int64_t samples);

  SampleStream(SampleStream&&) noexcept;
  SampleStream& operator=(SampleStream&&) noexcept;
  ~SampleStream();

  int64_t sequence() const { return sequence_; }
  /// Every sample that the epochs chosen for N hold (>= N). For a blend this walks the mixture to its end once;
  /// `holds` walks no further than it must.
  int64_t available() const;
  bool holds(int64_t samples) const;
  /// From now on `sample` refuses (DataError) ids outside [0, vocab).
  void check_vocab(int64_t vocab) { vocab_ = vocab; }
  /// Sample i -> sequence + 1 tokens. UsageError naming data.samples past the end. Safe to call from many threads.
  void sample(int64_t i, int32_t* row) const;
  /// What sample i is made of, in order.
  std::vector<SamplePiece> pieces(int64_t i) const;
  /// The prefixes, numbered as in SamplePiece::source.
  const std::vector<std::string>& sources() const { return prefixes_; }
  /// Shares of the sources at sample 0 (they add up to 1).
  const std::vector<double>& weights() const { return weights_; }
  /// In the order of `sources`.
  std::vector<SourceFacts> facts() const;
  /// Samples that each source gives to the first n <= available().
  std::vector<int64_t> drawn(int64_t n) const;
  /// The source that ends first; meaningful after `holds` said no.
  int64_t exhausted() const;

 private:
  friend class StreamBuilder;
  SampleStream();
  std::vector<std::unique_ptr<SourceOrder>> orders_;
  std::unique_ptr<Blend> blend_;  // null with one source
  std::vector<std::string> prefixes_;
  std::vector<double> weights_;
  int64_t sequence_ = 0, samples_ = 0, vocab_ = 0;
};

/// SHA-256 of the first n samples as rows of sequence + 1 little-endian int32, in hexadecimal.
std::string stream_sha256(const SampleStream& stream, int64_t n);
/// The first n samples, a line each, then their SHA-256.
void print_samples(std::ostream& out, const SampleStream& stream, int64_t n);

/// Text to token ids and back.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;
  virtual int64_t vocab() const = 0;
  /// The id that ends a document, where the tokenizer has one.
  virtual std::optional<int32_t> eod() const = 0;
  /// The id of a token by its spelling, for `--eod TOKEN`.
  virtual std::optional<int32_t> find(std::string_view token) const = 0;
  /// Whether encode(a) + encode(b) = encode(a + b) for every cut: then huge texts are encoded in pieces.
  virtual bool cuts_anywhere() const = 0;
  /// Appends the ids of `text`. Spellings of control tokens inside it are ordinary text.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  /// Appends the text of `n` ids; the end of a document has no text. DataError for an id outside the vocabulary.
  virtual void decode(const int32_t* ids, int64_t n, std::string& text) const = 0;
};

/// `bytes`: token = byte, 256 = end of document. Anything else is refused by name (UsageError).
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec);

}  // namespace orthant
