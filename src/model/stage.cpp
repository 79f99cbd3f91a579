// Units of the model: embedding, block, head behind one interface, and the chunks of a stage.
#include "orthant/stage.hpp"

#include "layers/block.hpp"
#include "layers/embedding.hpp"
#include "layers/head.hpp"
#include "model/stage_cut.hpp"

namespace orthant {
namespace {

template <class Saved>
struct Kept : Stash {
  Saved saved;
};

/// Pointers to those of `params` that this rank holds.
std::vector<LocalParam*> find(Context& ctx, ParamStore& store, const std::vector<Param>& params) {
  std::vector<LocalParam*> out;
  for (const Param& p : params)
    if (ctx.layout.holds(p)) out.push_back(&store.at(p.name));
  return out;
}

class EmbeddingUnit : public Unit {
 public:
  EmbeddingUnit(Context& ctx, const ModelConfig& c, ParamStore& store) : layer_(c, store, ctx.axes, ctx.layout) {
    params_ = find(ctx, store, Embedding::params(c));
  }
  Tensor forward(Context& ctx, const Tensor&, bool, std::unique_ptr<Stash>&, LossSum&) const override { return layer_.forward(ctx); }
  Tensor backward(Context& ctx, const Tensor& dy, std::unique_ptr<Stash>&) const override {
    layer_.backward(ctx, dy);
    return {};
  }

 private:
  Embedding layer_;
};

class BlockUnit : public Unit {
 public:
  BlockUnit(Context& ctx, const ModelConfig& c, ParamStore& store, int64_t layer, Tensor rope)
      : layer_(prefix(layer), c, layer, store, ctx.axes, ctx.layout), rope_(std::move(rope)) {
    params_ = find(ctx, store, Block::params(prefix(layer), c, layer));
  }
  Tensor forward(Context& ctx, const Tensor& x, bool train, std::unique_ptr<Stash>& kept, LossSum&) const override {
    auto mine = std::make_unique<Kept<Block::Saved>>();
    Tensor y = layer_.forward(ctx, x, rope_, mine->saved);
    if (train) kept = std::move(mine);
    return y;
  }
  Tensor backward(Context& ctx, const Tensor& dy, std::unique_ptr<Stash>& kept) const override {
    Tensor dx = layer_.backward(ctx, dy, rope_, dynamic_cast<Kept<Block::Saved>&>(*kept).saved);
    kept.reset();
    return dx;
  }

 private:
  static std::string prefix(int64_t layer) { return "layers." + std::to_string(layer); }
  Block layer_;
  Tensor rope_;
};

class HeadUnit : public Unit {
 public:
  HeadUnit(Context& ctx, const ModelConfig& c, ParamStore& store) : layer_(c, store, ctx.axes, ctx.layout) {
    params_ = find(ctx, store, Head::params(c));
    if (c.tie_embeddings) params_.push_back(&store.at("embedding.tokens.weight"));
  }
  Tensor forward(Context& ctx, const Tensor& x, bool train, std::unique_ptr<Stash>& kept, LossSum& loss) const override {
    auto mine = std::make_unique<Kept<Head::Saved>>();
    loss = layer_.forward(ctx, x, train, mine->saved);
    if (train) kept = std::move(mine);
    return {};
  }
  Tensor backward(Context& ctx, const Tensor&, std::unique_ptr<Stash>& kept) const override {
    Tensor dx = layer_.backward(ctx, dynamic_cast<Kept<Head::Saved>&>(*kept).saved);
    kept.reset();
    return dx;
  }
  bool gradient_in_forward() const override { return true; }
  Tensor last_logits(Context& ctx, const Tensor& x) const override { return layer_.last_logits(ctx, x); }

 private:
  Head layer_;
};

struct WholeStash : Stash {
  std::vector<std::unique_ptr<Stash>> units;
};

}  // namespace

LossSum Stage::forward(Context& ctx, bool train, std::unique_ptr<Stash>& stash) const {
  ORTHANT_ENSURE(chunks.size() == 1, "a stage of several chunks is run by a schedule");
  auto kept = std::make_unique<WholeStash>();
  LossSum loss;
  Tensor x;
  for (const auto& unit : chunks[0].units) {
    kept->units.emplace_back();
    x = unit->forward(ctx, x, train, kept->units.back(), loss);
  }
  if (train) stash = std::move(kept);
  return loss;
}

void Stage::backward(Context& ctx, std::unique_ptr<Stash>& stash) const {
  auto& kept = dynamic_cast<WholeStash&>(*stash);
  Tensor dx;
  for (size_t u = chunks[0].units.size(); u-- > 0;) dx = chunks[0].units[u]->backward(ctx, dx, kept.units[u]);
  stash.reset();
}

Tensor Stage::last_logits(Context& ctx) const {
  ORTHANT_ENSURE(chunks.size() == 1 && !chunks[0].units.empty(), "logits need the whole model");
  const auto& units = chunks[0].units;
  LossSum loss;
  std::unique_ptr<Stash> none;
  Tensor x;
  for (size_t u = 0; u + 1 < units.size(); ++u) x = units[u]->forward(ctx, x, false, none, loss);
  return units.back()->last_logits(ctx, x);
}

std::unique_ptr<Stage> make_stage(Context& ctx, const ModelConfig& c, ParamStore& store, const std::vector<ChunkRange>& ranges) {
  auto stage = std::make_unique<Stage>();
  int64_t blocks = 0;
  for (const ChunkRange& r : ranges) blocks += r.layers;
  Tensor rope = c.family != "gpt2" && blocks > 0 ? make_rope_table(ctx, c, ctx.sequence) : Tensor();
  for (const ChunkRange& r : ranges) {
    Chunk chunk;
    if (r.embedding) chunk.units.push_back(std::make_unique<EmbeddingUnit>(ctx, c, store));
    for (int64_t l = 0; l < r.layers; ++l) chunk.units.push_back(std::make_unique<BlockUnit>(ctx, c, store, r.first_layer + l, rope));
    if (r.head) chunk.units.push_back(std::make_unique<HeadUnit>(ctx, c, store));
    stage->chunks.push_back(std::move(chunk));
  }
  return stage;
}

std::unique_ptr<Stage> make_stage(Context& ctx, const ModelConfig& c, ParamStore& store) {
  return make_stage(ctx, c, store, stage_cut(c.layers, 1));
}

}  // namespace orthant
