// Keys and sizes of precision.compute = "fp8", and where precision.tf32 means nothing.
#include <set>

#include "deck/check.hpp"
#include "deck/keys_device.hpp"
#include "deck/keys_mesh.hpp"
#include "deck/keys_precision.hpp"
#include "deck/keys_run.hpp"
#include "layers/fp8.hpp"
#include "orthant/model.hpp"

namespace orthant {

namespace kp = keys::precision;

namespace {

std::string text(int64_t x) { return std::to_string(x); }

MeshShape mesh_of(const Deck& deck, const ModelConfig& m) {
  MeshShape s;
  s.tp = deck[keys::mesh::tp];
  s.ep = deck[keys::mesh::ep];
  s.etp = deck[keys::mesh::etp];
  s.dp = s.ep;  // room for the experts; a place of its own is all that the first rank's pieces need
  s.kv_heads = m.kv_heads;
  s.experts = m.moe.experts;
  s.cut_heads = deck[keys::layout::heads] == "tp";
  s.cut_ffn = deck[keys::layout::ffn] == "tp";
  return s;
}

/// What is wrong with a dim of a weight of which a rank holds `part` of `whole`; "" if nothing. Widths of the model are asked to fill
/// FP8 units whatever the device, so that a deck may move; parts that they do not fill, and blocks that end early, only a GPU minds.
std::string dim_problem(const std::string& recipe, bool cuda, DimName name, int64_t part, int64_t whole) {
  const int64_t block = recipe == "mxfp8" ? 32 : recipe == "blockwise" ? 128 : 1, unit = recipe == "mxfp8" ? 32 : 16;
  const bool width = name == DimName::hidden || name == DimName::ffn || name == DimName::expert_ffn;
  if (width && whole % unit != 0) return text(whole) + " is not a multiple of " + text(unit);
  if (part < whole && part % block != 0)
    return "the cut of " + text(whole) + " into parts of " + text(part) + " goes through blocks of " + text(block);
  if (cuda && part % unit != 0) return text(part) + " is not a multiple of " + text(unit) + ", which products on the GPU ask for";
  return "";
}

}  // namespace

std::vector<std::string> check_fp8_keys(const Deck& deck) {
  std::vector<std::string> out;
  const bool fp8 = deck[kp::compute] == "fp8";
  const std::string& recipe = deck[kp::fp8_recipe];
  // Values that are the defaults do no harm: resolved decks have them all.
  const auto without = [&](std::size_t key, bool set, bool used, const std::string& where) {
    if (set && !used) out.push_back(deck.show(key) + " changes nothing: it belongs to " + where);
  };
  const std::string only = "precision.compute = \"fp8\", not " + deck.show(kp::compute);
  const std::string delayed = fp8 ? "precision.fp8_recipe = \"delayed\", not \"" + recipe + "\"" : only;
  const bool scaled = recipe == "delayed" || recipe == "current";
  without(kp::fp8_recipe.index(), recipe != "delayed", fp8, only);
  without(kp::fp8_keep_ends.index(), deck[kp::fp8_keep_ends] != 0, fp8, only);
  without(kp::fp8_history.index(), deck[kp::fp8_history] != 1024, fp8 && recipe == "delayed", delayed);
  without(kp::fp8_amax.index(), deck[kp::fp8_amax] != "max", fp8 && recipe == "delayed", delayed);
  without(kp::fp8_margin.index(), deck[kp::fp8_margin] != 0, fp8 && scaled,
          fp8 ? "precision.fp8_recipe = \"delayed\" or \"current\", not \"" + recipe + "\"" : only);
  if (fp8 && deck[keys::run::reproducible])
    out.push_back("run.reproducible = true with precision.compute = \"fp8\": sums of FP8 products are not exact, and scales follow "
                  "from the cut of the mesh; use bf16 or fp32");
  return out;
}

std::vector<std::string> check_tf32(const Deck& deck) {
  std::vector<std::string> out;
  if (!deck[kp::tf32]) return out;
  const std::string& backend = deck[keys::device::backend];
  if (backend == "cpu" || backend == "debug")
    out.push_back("precision.tf32 = true with device.backend = \"" + backend + "\": products of fp32 are in full there; only the backend cuda has TF32");
  if (deck[kp::compute] != "fp32")
    out.push_back("precision.tf32 = true changes nothing: it belongs to precision.compute = \"fp32\", not " + deck.show(kp::compute));
  if (deck[keys::run::reproducible])
    out.push_back("run.reproducible = true with precision.tf32 = true: reproducible products are in full fp32; use precision.tf32 = false");
  return out;
}

std::vector<std::string> check_fp8_sizes(const Deck& deck, const ModelConfig& m) { return check_fp8_sizes(deck, m, deck[keys::device::backend]); }

std::vector<std::string> check_fp8_sizes(const Deck& deck, const ModelConfig& m, const std::string& backend) {
  std::vector<std::string> out;
  if (deck[kp::compute] != "fp8" || m.layers < 1 || m.hidden < 1 || m.heads < 1 || m.kv_heads < 1 || m.head_dim < 1) return out;
  Fp8Settings settings;
  settings.keep_ends = deck[kp::fp8_keep_ends];
  if (settings.keep_ends > (m.layers - 1) / 2) {
    out.push_back(deck.show(kp::fp8_keep_ends) + " leaves none of model.layers = " + text(m.layers) + " blocks in FP8; give at most " +
                  text((m.layers - 1) / 2));
    return out;
  }
  const std::string& recipe = deck[kp::fp8_recipe];
  const Layout layout(mesh_of(deck, m), {}, false, false);
  std::set<std::string> told;
  for (const Param& p : model_params(m)) {
    if (!in_fp8(p, settings, m.layers) || !layout.holds(p)) continue;
    const Piece piece = layout.piece(p);
    for (const auto& [name, part, whole] :
         {std::tuple(p.dims[0].name, piece.rows, p.rows()), std::tuple(p.dims[1].name, piece.cols, p.cols())}) {
      const std::string problem = dim_problem(recipe, backend == "cuda", name, part, whole);
      const bool cut = part < whole;
      const std::string axis = name == DimName::expert_ffn ? "mesh.etp" : "mesh.tp";
      const int64_t by = name == DimName::expert_ffn ? deck[keys::mesh::etp] : deck[keys::mesh::tp];
      if (!problem.empty() && told.insert(std::string(name_of(name)) + problem).second)
        out.push_back(deck.show(kp::fp8_recipe) + ": the dim " + name_of(name) + " of " + p.name +
                      (cut ? ", on a rank with " + axis + " = " + text(by) : "") + ": " + problem);
    }
  }
  return out;
}

}  // namespace orthant
