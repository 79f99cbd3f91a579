// See layout.hpp.
#include "orthant/layout.hpp"

#include <algorithm>

#include "orthant/error.hpp"

namespace orthant {

int64_t vocab_block(int64_t vocab, int64_t parts) {
  int64_t blocks = parts > 16 ? parts : 16;
  return (vocab + blocks - 1) / blocks;
}

Range vocab_range(int64_t vocab, int64_t parts, int64_t index) {
  int64_t blocks = parts > 16 ? parts : 16, length = vocab_block(vocab, parts);
  int64_t begin = std::min(vocab, blocks * index / parts * length);
  int64_t end = std::min(vocab, blocks * (index + 1) / parts * length);
  return {begin, end - begin};
}

Range Layout::kv_heads(int64_t kv_heads) const {
  if (kv_heads >= shape_.tp) return even(kv_heads, shape_.tp, at_.tp);
  return {at_.tp * kv_heads / shape_.tp, 1};
}

Range Layout::range_of(const Dim& d) const {
  switch (d.name) {
    case DimName::heads: case DimName::ffn: return even(d.size, shape_.tp, at_.tp);
    case DimName::kv_heads: {
      Range r = kv_heads(d.size / d.unit);
      return {r.begin * d.unit, r.size * d.unit};
    }
    case DimName::vocab: return vocab(d.size);
    default: return {0, d.size};
  }
}

Layout::Cut Layout::cut_of(const Param& p) const {
  for (const Dim& d : p.dims) {
    if (d.name == DimName::heads || d.name == DimName::ffn || d.name == DimName::vocab) return Cut::tp;
    if (d.name == DimName::kv_heads) return d.size / d.unit >= shape_.tp ? Cut::tp : Cut::tp_but_rep;
  }
  return Cut::none;
}

Piece Layout::piece(const Param& p) const {
  Range rows = range_of(p.dims[0]);
  Range cols = p.dims.size() > 1 ? range_of(p.dims[1]) : Range{0, 1};
  return {rows.begin, rows.size, cols.begin, cols.size};
}

std::vector<AxisName> Layout::sum_axes(const Param& p) const {
  unsigned over = p.contracted;
  // Reproducible mode sums over the query heads of a kv head before the weight product, exactly.
  if (reproducible_) over &= ~static_cast<unsigned>(over_query_heads);
  bool tp = (over & (over_heads | over_query_heads)) || ((over & over_tokens) && sequence_parallel_);
  std::vector<AxisName> axes;
  if (tp) {
    Cut cut = cut_of(p);
    if (cut == Cut::none) axes.push_back(AxisName::tp);
    if (cut == Cut::tp_but_rep) axes.push_back(AxisName::tp_rep);
  }
  axes.push_back(AxisName::cp);
  axes.push_back(AxisName::dp);
  return axes;
}

bool Layout::counted(const Param& p) const {
  switch (cut_of(p)) {
    case Cut::tp: return true;
    case Cut::tp_but_rep: return at_.tp % (shape_.tp / (p.dims[0].size / p.dims[0].unit)) == 0;
    case Cut::none: return at_.tp == 0;
  }
  return false;
}

}  // namespace orthant
