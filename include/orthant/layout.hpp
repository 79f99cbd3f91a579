// Which piece of a parameter a rank holds, and over which axes its gradient is summed: both derived from the Param
// record, never written by a layer.
#pragma once

#include <vector>

#include "orthant/mesh.hpp"
#include "orthant/model_config.hpp"
#include "orthant/param.hpp"

namespace orthant {

struct Range {
  int64_t begin = 0, size = 0;
};

/// Rows of the vocabulary held by part `index` of `parts`: whole blocks of ceil(V / 16) (src/README.md, number 3).
Range vocab_range(int64_t vocab, int64_t parts, int64_t index);
/// Length of a canonical block of the vocabulary.
int64_t vocab_block(int64_t vocab, int64_t parts = 1);

class Layout {
 public:
  Layout(const MeshShape& shape, const Coordinates& at, bool sequence_parallel, bool reproducible)
      : shape_(shape), at_(at), sequence_parallel_(sequence_parallel), reproducible_(reproducible) {}

  const MeshShape& shape() const { return shape_; }
  const Coordinates& at() const { return at_; }
  bool sequence_parallel() const { return sequence_parallel_; }
  bool reproducible() const { return reproducible_; }

  /// The piece this rank holds.
  Piece piece(const Param& p) const;
  /// The axes over which the gradient is summed, besides the local tokens: the axes that cut the index it is contracted
  /// over, minus the axes that cut the parameter.
  std::vector<AxisName> sum_axes(const Param& p) const;
  /// True on the one rank of the model axes (tp, pp) that counts this piece in norms; every dp and cp coordinate has its copy.
  bool counted(const Param& p) const;
  /// True on the one rank of all that writes this piece to a file.
  bool writes(const Param& p) const { return counted(p) && at_.dp == 0 && at_.cp == 0; }

  Range heads(int64_t heads) const { return even(heads, shape_.tp, at_.tp); }
  /// kv heads of this rank: a part, or one shared with the neighbours on tp_rep.
  Range kv_heads(int64_t kv_heads) const;
  Range vocab(int64_t vocab) const { return vocab_range(vocab, shape_.tp, at_.tp); }

 private:
  static Range even(int64_t n, int64_t parts, int64_t index) { return {n / parts * index, n / parts}; }
  enum class Cut { none, tp, tp_but_rep };
  Cut cut_of(const Param& p) const;
  Range range_of(const Dim& d) const;

  MeshShape shape_;
  Coordinates at_;
  bool sequence_parallel_, reproducible_;
};

}  // namespace orthant
