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

  /// Whether this rank has a piece at all: an expert is held by the ranks of one coordinate of ep.
  bool holds(const Param& p) const;
  /// The piece this rank holds (no rows where it holds none).
  Piece piece(const Param& p) const;
  /// The axes over which the gradient is summed, besides the local tokens: the axes that cut the index it is contracted
  /// over, minus the axes that cut the parameter. edp_shard and edp_replica for experts, cp and dp for all others, come
  /// last.
  std::vector<AxisName> sum_axes(const Param& p) const;
  /// True on the one rank of the model axes (tp, pp, ep) that counts this piece in norms; every coordinate of the data
  /// axes (dp x cp, edp for experts) has its copy.
  bool counted(const Param& p) const;
  /// Place of this rank among those that hold the same piece and see other data.
  int64_t data_place(const Param& p) const { return p.expert >= 0 ? edp_of(shape_, at_) : data_index_of(shape_, at_); }
  /// True on the one rank of all that writes this piece to a file.
  bool writes(const Param& p) const { return (counted(p) || (!p.trained && at_.tp == 0)) && data_place(p) == 0; }

  Range heads(int64_t heads) const { return even(heads, head_parts(), head_part()); }
  /// kv heads of this rank: a part, or one shared with the neighbours on tp_rep.
  Range kv_heads(int64_t kv_heads) const;
  Range vocab(int64_t vocab) const { return vocab_range(vocab, vocab_parts(), shape_.cut_vocab ? at_.tp : 0); }
  /// Experts of this rank.
  Range experts() const { return even(shape_.experts, shape_.ep, ep_of(shape_, at_)); }
  int64_t head_parts() const { return shape_.cut_heads ? shape_.tp : 1; }
  int64_t ffn_parts() const { return shape_.cut_ffn ? shape_.tp : 1; }
  int64_t vocab_parts() const { return shape_.cut_vocab ? shape_.tp : 1; }

 private:
  static Range even(int64_t n, int64_t parts, int64_t index) { return {n / parts * index, n / parts}; }
  enum class Cut { none, tp, tp_but_rep };
  Cut cut_of(const Param& p) const;
  Range range_of(const Dim& d) const;
  int64_t head_part() const { return shape_.cut_heads ? at_.tp : 0; }

  MeshShape shape_;
  Coordinates at_;
  bool sequence_parallel_, reproducible_;
};

}  // namespace orthant
