// The Param record: the one source from which shards, initialisation, gradient sums, norms, memory, files follow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

/// Names of tensor dims. A layout may cut heads, kv_heads, ffn and vocab over tp, and expert_ffn over etp; the others are
/// never cut by an axis of the mesh (`experts` are the rows of a router: every rank has all of them; `latent` is the width
/// of a compressed query, key or value).
enum class DimName { hidden, head_dim, positions, heads, kv_heads, ffn, vocab, latent, experts, expert_ffn };

inline const char* name_of(DimName d) {
  static const char* names[] = {"hidden", "head_dim", "positions", "heads", "kv_heads", "ffn", "vocab", "latent", "experts", "expert_ffn"};
  return names[static_cast<int>(d)];
}

/// One dim of a parameter: its name, its global length, and the length of a piece that is never cut
/// (head_dim for heads: q.weight has dim 0 = {heads, heads * head_dim, head_dim}).
struct Dim {
  DimName name;
  int64_t size;
  int64_t unit = 1;
};

/// Indices that a gradient is contracted over (a bit set). The axes that cut one of these indices are the axes the
/// gradient is summed over, minus the axes that cut the parameter itself.
enum Contracted : unsigned {
  over_tokens = 1,       ///< tokens of the residual stream: cut by dp, cp, and by tp under sequence parallelism
  over_all_tokens = 2,   ///< tokens inside a tp region, where they are whole: cut by dp and cp only
  over_heads = 4,        ///< the heads of a rank (gains shared by all heads)
  over_query_heads = 8,  ///< the query heads that share a kv head (k and v projections)
};

/// How a parameter is drawn. `std` is final (the residual projections already divided).
struct Init {
  enum Kind { zeros, ones, normal } kind = normal;
  double std = 0.02;
};

/// Where a parameter lies in a Hugging Face file: rows [offset, offset + dims[0].size) of dim 0 of `tensor`, counted
/// after the file tensor was transposed where `transpose` says so (GPT-2 stores [in, out]; c_attn holds q|k|v).
struct FileTensor {
  std::string tensor;
  int64_t file_rows = 0;  ///< length of dim 0 of the whole file tensor, after `transpose`
  int64_t offset = 0;
  bool transpose = false;
};

/// A parameter of the model, global view.
struct Param {
  std::string name;       ///< e.g. layers.3.attention.q.weight; also the dataset's name in a checkpoint
  std::vector<Dim> dims;  ///< 1 or 2 dims; matrices are [out, in]
  unsigned contracted = over_tokens;
  Init init;
  bool decay = true;      ///< weight decay (two or more dims)
  FileTensor file;
  int64_t expert = -1;    ///< the routed expert it belongs to: held by one coordinate of ep, its gradient summed over edp
  bool trained = true;    ///< false: no gradient, no optimiser state, not in the norm (the selection bias of a router)

  int64_t elements() const {
    int64_t n = 1;
    for (const Dim& d : dims) n *= d.size;
    return n;
  }
  int64_t rows() const { return dims[0].size; }
  int64_t cols() const { return dims.size() > 1 ? dims[1].size : 1; }
};

/// A rectangular piece of a parameter: rows [row, row + rows) and columns [col, col + cols) of its global shape.
struct Piece {
  int64_t row = 0, rows = 0, col = 0, cols = 1;
  int64_t elements() const { return rows * cols; }
  bool operator==(const Piece&) const = default;
};

}  // namespace orthant
