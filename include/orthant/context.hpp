// What a layer is handed during a step: backend, axes, types, and the shape of the micro-batch.
#pragma once

#include <functional>
#include <vector>

#include "orthant/collectives.hpp"
#include "orthant/layout.hpp"
#include "orthant/store.hpp"

namespace orthant {

/// A micro-batch on this rank. Token tensors have one row a token, row = local position * sequences + sequence; the local
/// positions run through `runs`, one after the other.
struct MicroBatch {
  int64_t sequences = 0;  ///< B
  int64_t length = 0;     ///< positions held by this rank's cp coordinate
  std::vector<Range> runs;  ///< places in the sequence of these positions: all of it, or the two chunks of a cp rank
  Tensor starts;            ///< i32 [tokens, 1]: place of the first token of the document; none without document masks
  Tensor places;            ///< i64 [tokens, 1]: sequence in the stream * L + place in it; none without dropout
  Tensor whole_starts, whole_places;  ///< the same of the whole sequences in order; starts and places themselves for cp = 1
  Tensor ids, labels, positions;  ///< i32 [tokens, 1]; label -1 does not count
  Tensor weights;                 ///< A [tokens, 1]: 0, or the loss scale / valid tokens of the global batch
  int64_t tokens() const { return sequences * length; }
};

/// How queries meet the keys of other ranks of cp: src/layers/context_attention.hpp.
enum class ContextMethod { ring, all_gather, all_to_all };

class RouterStats;
class Fp8;

/// How much of the forward pass is done again in the backward pass.
enum class Recompute { none, selective, full };

class Context {
 public:
  Context(Backend& backend, const Axes& axes, const Layout& layout, Precision precision, int64_t sequence, Recompute recompute)
      : be(backend), axes(axes), layout(layout), T(precision.compute), A(precision.accumulate()), sequence(sequence), recompute(recompute) {}

  Backend& be;
  const Axes& axes;
  const Layout& layout;
  const DType T, A;
  const int64_t sequence;  ///< of the whole model input, before any cut
  const Recompute recompute;
  const MicroBatch* batch = nullptr;
  ContextMethod context_method = ContextMethod::ring;
  int64_t chunks = 1;    ///< pieces of a tensor-parallel product and its collective: layers/pieces.hpp
  double dropout = 0;    ///< model.dropout while training, 0 else
  uint64_t seed = 0;     ///< of dropout
  int64_t step = 0;      ///< counts from 1
  int64_t global_sequences = 1;           ///< of a step: the losses of routers are means over them
  RouterStats* router_stats = nullptr;    ///< while training: what routers report
  Fp8* fp8 = nullptr;     ///< precision.compute = "fp8": formats and scales of the products of blocks
  double loss_scale = 1;  ///< fp16: a power of two on all gradients, taken back where norm and update read them
  bool again = false;    ///< the forward pass is being redone (recompute): nothing is reported twice

  bool reproducible() const { return layout.reproducible(); }
  Tensor activation(int64_t rows, int64_t cols) { return be.alloc(T, rows, cols, MemoryKind::activations); }
  Tensor statistic(int64_t rows, int64_t cols) { return be.alloc(A, rows, cols, MemoryKind::activations); }
  Tensor workspace(DType dtype, int64_t rows, int64_t cols) { return be.alloc(dtype, rows, cols, MemoryKind::workspace); }

  /// Weight gradients go through here: at once, or later when the schedule has a W action of its own.
  void defer(std::function<void()> work) {
    if (keep_deferred) deferred_.push_back(std::move(work));
    else work();
  }
  /// The kept work, for the W action that will run it.
  std::vector<std::function<void()>> take_deferred() {
    auto work = std::move(deferred_);
    deferred_.clear();
    return work;
  }
  bool keep_deferred = false;

  /// Canonical blocks of token rows (reproducible mode): ceil(sequence / 16) positions each, for tensors that start at
  /// a block's edge.
  std::vector<Range> token_blocks(int64_t rows) const {
    int64_t step = (sequence + 15) / 16 * batch->sequences;
    std::vector<Range> out;
    for (int64_t at = 0; at < rows; at += step) out.push_back({at, std::min(step, rows - at)});
    return out;
  }

 private:
  std::vector<std::function<void()>> deferred_;
};

}  // namespace orthant
