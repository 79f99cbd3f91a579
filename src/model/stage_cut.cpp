// See stage_cut.hpp.
#include "model/stage_cut.hpp"

#include "orthant/error.hpp"
#include "orthant/model.hpp"

namespace orthant {

std::vector<ChunkRange> stage_cut(int64_t layers, int64_t n, const std::vector<int64_t>& given) {
  ORTHANT_ENSURE(n >= 1 && layers + 2 >= n, "more virtual stages than pieces of the model");
  ORTHANT_ENSURE(given.empty() || static_cast<int64_t>(given.size()) == n, "a number of blocks for each virtual stage");
  std::vector<ChunkRange> out(static_cast<size_t>(n));
  int64_t at = 0;
  for (int64_t s = 0; s < n; ++s) {
    ChunkRange& r = out[static_cast<size_t>(s)];
    r.embedding = s == 0;
    r.head = s == n - 1;
    r.first_layer = at;
    if (!given.empty()) r.layers = given[static_cast<size_t>(s)];
    else if (layers % n == 0) r.layers = layers / n;
    else r.layers = (layers + 2) / n + (s < (layers + 2) % n) - r.embedding - r.head;
    at += r.layers;
  }
  ORTHANT_ENSURE(at == layers, "the stages do not hold every block once");
  return out;
}

int64_t head_stage(const Pipeline& pipeline) { return pipeline.stage_of(pipeline.virtual_stages() - 1); }

std::string range_text(const ChunkRange& r) {
  std::string out = r.embedding ? "embedding" : "";
  auto add = [&](const std::string& more) { out += (out.empty() ? "" : ", ") + more; };
  if (r.layers == 1) add("block " + std::to_string(r.first_layer + 1));
  if (r.layers > 1) add("blocks " + std::to_string(r.first_layer + 1) + "-" + std::to_string(r.first_layer + r.layers));
  if (r.head) add("head");
  return out.empty() ? "nothing" : out;
}

std::vector<std::vector<Param>> range_params(const ModelConfig& config, const ChunkRange& r, bool tied_head) {
  const std::vector<Param> all = model_params(config);
  auto starting = [&](const std::string& prefix) {
    std::vector<Param> out;
    for (const Param& p : all)
      if (p.name.rfind(prefix, 0) == 0) out.push_back(p);
    return out;
  };
  std::vector<std::vector<Param>> units;
  if (r.embedding) units.push_back(starting("embedding."));
  for (int64_t l = 0; l < r.layers; ++l) units.push_back(starting("layers." + std::to_string(r.first_layer + l) + "."));
  if (!r.head) return units;
  units.push_back(starting("final_norm"));
  const bool tied = config.tie_embeddings && tied_head;
  for (Param& p : starting(tied ? "embedding.tokens.weight" : "head.")) units.back().push_back(std::move(p));
  return units;
}

std::vector<std::vector<Param>> unit_params(const ModelConfig& config, const Pipeline& pipeline, const std::vector<ChunkRange>& cut, int64_t stage) {
  std::vector<std::vector<Param>> units;
  for (int64_t c = 0; c < pipeline.shape.chunks; ++c)  // the embedding is always on stage 0
    for (auto& unit : range_params(config, cut[static_cast<size_t>(pipeline.virtual_stage(stage, c))], stage != 0)) units.push_back(std::move(unit));
  return units;
}

}  // namespace orthant
