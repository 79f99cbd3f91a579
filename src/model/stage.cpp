// A stage that holds the whole model: embedding, blocks, head.
#include "orthant/stage.hpp"

#include "layers/block.hpp"
#include "layers/embedding.hpp"
#include "layers/head.hpp"

namespace orthant {
namespace {

struct WholeStash : Stash {
  std::vector<Block::Saved> blocks;
  Head::Saved head;
};

class WholeModel : public Stage {
 public:
  WholeModel(Context& ctx, const ModelConfig& c, ParamStore& store)
      : embedding_(c, store, ctx.axes, ctx.layout), head_(c, store, ctx.axes, ctx.layout) {
    for (int64_t l = 0; l < c.layers; ++l) blocks_.emplace_back("layers." + std::to_string(l), c, store, ctx.axes, ctx.layout);
    if (c.family != "gpt2") rope_ = make_rope_table(ctx, c, ctx.sequence);
  }

  LossSum forward(Context& ctx, bool train, std::unique_ptr<Stash>& stash) const override {
    auto kept = std::make_unique<WholeStash>();
    Tensor x = run_blocks(ctx, train ? kept.get() : nullptr);
    LossSum loss = head_.forward(ctx, x, train, kept->head);
    if (train) stash = std::move(kept);
    return loss;
  }

  void backward(Context& ctx, std::unique_ptr<Stash>& stash) const override {
    auto& kept = dynamic_cast<WholeStash&>(*stash);
    Tensor dx = head_.backward(ctx, kept.head);
    for (size_t l = blocks_.size(); l-- > 0;) dx = blocks_[l].backward(ctx, dx, rope_, kept.blocks[l]);
    embedding_.backward(ctx, dx);
    stash.reset();
  }

  Tensor last_logits(Context& ctx) const override { return head_.last_logits(ctx, run_blocks(ctx, nullptr)); }

 private:
  Tensor run_blocks(Context& ctx, WholeStash* kept) const {
    Tensor x = embedding_.forward(ctx);
    if (kept) kept->blocks.resize(blocks_.size());
    for (size_t l = 0; l < blocks_.size(); ++l) {
      Block::Saved scratch;
      x = blocks_[l].forward(ctx, x, rope_, kept ? kept->blocks[l] : scratch);
    }
    return x;
  }

  Embedding embedding_;
  std::vector<Block> blocks_;
  Head head_;
  Tensor rope_;
};

}  // namespace

std::unique_ptr<Stage> make_stage(Context& ctx, const ModelConfig& config, ParamStore& store) {
  return std::make_unique<WholeModel>(ctx, config, store);
}

}  // namespace orthant
