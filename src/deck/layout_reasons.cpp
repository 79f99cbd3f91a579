// See layout_reasons.hpp.
#include "deck/layout_reasons.hpp"

#include <algorithm>
#include <vector>

namespace orthant {

namespace {

struct Reason {
  const char* dim;
  const char* axis;  ///< "*": whatever axis
  const char* words;
};

// The first row that fits is the answer.
constexpr Reason reasons[] = {
    {"experts", "tp",
     "the ffn of an expert may be on tp already (mesh.etp = tp), and one axis cannot cut two dims of a tensor; with "
     "mesh.etp = 1 the axis ep may take in the ranks of tp"},
    {"experts", "cp",
     "the axis ep is one of its own, which lies in cp x dp (with etp = 1 in tp x cp x dp); see mesh.ep"},
    {"experts", "dp",
     "the axis ep is one of its own, which lies in cp x dp (with etp = 1 in tp x cp x dp); see mesh.ep"},
    {"experts", "pp", "pp cuts the blocks, and the experts of a block stand beside each other on one stage"},
    {"experts", "", "mesh.ep = 1 gives every rank all experts"},
    {"batch", "cp",
     "tokens have a batch and a sequence dim, cp cuts the sequence, and one axis cannot cut two dims of a tensor"},
    {"batch", "tp",
     "inside a layer the ranks of tp hold parts of heads and ffn of the same tokens, and one axis cannot cut two "
     "dims "
     "of a tensor"},
    {"batch", "pp", "pp cuts the blocks, and every sequence passes through all of them"},
    {"batch", "ep", "ep lies across the axes that cut the tokens, and cuts experts alone"},
    {"batch", "", "mesh.dp = 1 leaves the batch whole"},
    {"sequence", "dp",
     "tokens have a batch and a sequence dim, dp cuts the batch, and one axis cannot cut two dims of a tensor"},
    {"sequence", "tp",
     "inside a layer tp cuts heads and ffn of the same tensors, and one axis cannot cut two dims of a tensor; "
     "between "
     "layers mesh.sequence_parallel = true lets tp cut the sequence"},
    {"sequence", "pp", "pp cuts the blocks, and every position passes through all of them"},
    {"sequence", "ep", "ep lies across the axes that cut the tokens, and cuts experts alone"},
    {"sequence", "", "mesh.cp = 1 leaves the sequence whole"},
    {"layers", "", "mesh.pp = 1 leaves the blocks together"},
    {"layers", "*",
     "blocks follow each other, so their axis hands activations from stage to stage; pp alone does, the others "
     "exchange parts of one layer"},
    {"heads", "cp",
     "queries, keys and values have a sequence dim, which cp cuts, and one axis cannot cut two dims of a tensor; "
     "context.method = \"all_to_all\" lets cp cut heads in attention alone"},
    {"*tp", "cp", "the activations have a sequence dim, which cp cuts, and one axis cannot cut two dims of a tensor"},
    {"*tp", "dp", "the activations have a batch dim, which dp cuts, and one axis cannot cut two dims of a tensor"},
    {"*tp", "pp", "pp cuts the blocks, and a layer stands on one stage as a whole"},
    {"*tp", "ep", "ep cuts experts alone, and lies across the axes that cut the tokens"},
    {"hidden", "*",
     "hidden is what every product contracts with or returns, so a cut would need a sum over ranks behind each of "
     "them; "
     "it is whole in every layout of this program"},
    {"head_dim", "*",
     "scores are sums over the width of a head, so a cut would need a sum over ranks for each of them; heads are cut "
     "between, not through (layout.heads)"},
    {"kv_heads", "*", "key and value heads follow the query heads that read them (layout.heads)"},
    {"expert_ffn", "*", "the ffn of an expert is cut by the axis etp (mesh.etp = 1, or the same as tp)"},
    {"latent", "*",
     "compressed queries, keys and values of latent attention are needed by every head, so they are whole"},
    {"positions", "*", "the table of learned positions is whole on every rank"},
};

bool cut_by_tp(const std::string& dim) { return dim == "heads" || dim == "ffn" || dim == "vocab"; }

bool is_axis(const std::string& word) {
  static const std::vector<std::string> axes = {"tp", "cp", "pp", "dp", "ep", "etp"};
  return std::find(axes.begin(), axes.end(), word) != axes.end();
}

}  // namespace

std::optional<std::string> layout_reason(const std::string& key, const std::string& axis) {
  const std::string section = "layout.";
  if (!key.starts_with(section)) return std::nullopt;
  const std::string dim = key.substr(section.size());
  for (const Reason& r : reasons) {
    const std::string words = r.dim, by = r.axis;
    if (words != dim && !(words == "*tp" && cut_by_tp(dim))) continue;
    if (by == axis || (by == "*" && (is_axis(axis) || dim != "layers"))) return r.words;
  }
  return std::nullopt;
}

}  // namespace orthant
