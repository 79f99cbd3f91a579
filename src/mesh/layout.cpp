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
  if (kv_heads >= head_parts()) return even(kv_heads, head_parts(), head_part());
  return {head_part() * kv_heads / head_parts(), 1};
}

bool Layout::holds(const Param& p) const {
  if (p.expert < 0) return true;
  const Range mine = experts();
  return p.expert >= mine.begin && p.expert < mine.begin + mine.size;
}

Range Layout::range_of(const Dim& d) const {
  switch (d.name) {
    case DimName::heads: return even(d.size, head_parts(), head_part());
    case DimName::ffn: return even(d.size, ffn_parts(), shape_.cut_ffn ? at_.tp : 0);
    case DimName::expert_ffn: return even(d.size, shape_.etp, shape_.etp > 1 ? at_.tp : 0);
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
    if ((d.name == DimName::heads && shape_.cut_heads) || (d.name == DimName::ffn && shape_.cut_ffn) || (d.name == DimName::vocab && shape_.cut_vocab)) return Cut::tp;
    if (d.name == DimName::kv_heads && shape_.cut_heads) return d.size / d.unit >= shape_.tp ? Cut::tp : Cut::tp_but_rep;
  }
  return Cut::none;
}

Piece Layout::piece(const Param& p) const {
  if (!holds(p)) return {0, 0, 0, p.cols()};
  Range rows = range_of(p.dims[0]);
  Range cols = p.dims.size() > 1 ? range_of(p.dims[1]) : Range{0, 1};
  return {rows.begin, rows.size, cols.begin, cols.size};
}

std::vector<AxisName> Layout::sum_axes(const Param& p) const {
  if (!p.trained) return {};
  // An expert's tokens are those of all ranks that send to it: what is left are the ranks that hold it too. Where etp cuts
  // it, every rank of tp has a piece of its own.
  if (p.expert >= 0) return {AxisName::edp_shard, AxisName::edp_replica};
  unsigned over = p.contracted;
  // Reproducible mode sums over the query heads of a kv head before the weight product, exactly.
  if (reproducible_) over &= ~static_cast<unsigned>(over_query_heads);
  const bool heads = shape_.cut_heads && (over & (over_heads | over_query_heads));
  bool tp = heads || ((over & over_tokens) && sequence_parallel_);
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
  if (!p.trained) return false;
  if (p.expert >= 0) return holds(p);
  switch (cut_of(p)) {
    case Cut::tp: return true;
    case Cut::tp_but_rep: return at_.tp % (shape_.tp / (p.dims[0].size / p.dims[0].unit)) == 0;
    case Cut::none: return at_.tp == 0;
  }
  return false;
}

}  // namespace orthant
