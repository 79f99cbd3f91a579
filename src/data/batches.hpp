// From the global stream of samples to the micro-batches of one rank.
#pragma once

#include <vector>

#include "orthant/context.hpp"
#include "orthant/data.hpp"

namespace orthant {

/// Samples of a step: the next `global` of the stream; dp rank r takes [r G/dp, (r + 1) G/dp) of them in runs of
/// `micro` (src/README.md, number 7), so that which sample is in which step does not depend on the mesh. The ranks of cp
/// read the same samples, and each keeps its places of every sequence (context_cut.hpp).
struct BatchShape {
  int64_t global = 1, micro = 1;
  int64_t dp = 1, dp_rank = 0;
  int64_t cp = 1, cp_rank = 0;
  int64_t micros() const { return global / (micro * dp); }
};

/// Which tokens count in the loss.
struct LossMask {
  const SampleStream* mask = nullptr;  ///< 0/1 per token, in the same order as the tokens
  int64_t eod = -1;                    ///< inputs with this id do not count; -1: all count
};

/// What is said of each token besides its id, label and weight.
struct TokenFacts {
  int64_t eod = -1;              ///< the token that ends a document; -1: a sequence is one document
  bool document_mask = false;    ///< MicroBatch::starts
  bool reset_positions = false;  ///< positions count from the start of the token's document
  bool places = false;           ///< MicroBatch::places: what dropout draws from
};

/// For each of `length` tokens the place of the first token of its document. An end-of-document token is the last one of
/// its document, the next token begins another; several in a row are documents of one token each. (There is no form for
/// markers that begin a document.) What a sequence begins with, the middle of a document or not, starts at 0.
std::vector<int32_t> document_starts(const int32_t* tokens, int64_t length, int64_t eod);

class Batches {
 public:
  /// LogicError when document masks or position resets are asked for without a token that ends a document.
  Batches(const SampleStream& stream, BatchShape shape, LossMask mask, TokenFacts facts = {});

  /// Reads this rank's samples of the batch that begins at sample `first`. Errors are this rank's own.
  void load_rows(int64_t first);
  /// Sums the tokens that count over dp, so that each token's weight in the loss is known before the first backward
  /// pass. Collective over dp; cp ranks have counted the same whole sequences.
  void count(Context& ctx);
  int64_t valid_tokens() const { return valid_; }  ///< of the global batch
  /// Micro-batch j on the device: this cp rank's places of its sequences.
  MicroBatch micro(Context& ctx, int64_t j) const;

 private:
  const SampleStream& stream_;
  BatchShape shape_;
  LossMask mask_;
  TokenFacts facts_;
  std::vector<int32_t> rows_;    ///< samples of this rank, sequence + 1 tokens each
  std::vector<int32_t> labels_;  ///< sequence a sample; -1 does not count
  std::vector<int32_t> starts_;  ///< sequence a sample; empty while nobody asks for documents
  int64_t first_ = 0;            ///< sample of the stream that is the first in rows_
  int64_t valid_ = 0;            ///< of this rank until `count`, then of the global batch
};

/// A micro-batch of given sequences of equal length (no labels): what generation needs. `length` is that of whole
/// sequences; a cp rank of `ctx` gets its places of them. What `facts` ask for is there: each sequence is one document, and
/// dropout draws as for place 0.
MicroBatch prompt_batch(Context& ctx, const std::vector<std::vector<int32_t>>& sequences, int64_t length, const TokenFacts& facts = {});
/// A micro-batch without values, for plans: as large as one of `Batches` with these facts. `length` is that of whole
/// sequences; a cp rank of `ctx` gets its share.
MicroBatch blank_batch(Context& ctx, int64_t sequences, int64_t length, const TokenFacts& facts = {});

}  // namespace orthant
