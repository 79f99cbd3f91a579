// See list.hpp. A new layer is one line of the list; an adapter is needed only for another set of arguments.
#include "layers/list.hpp"

#include "layers/block.hpp"

namespace orthant {

namespace {

const std::string prefix = "layer";

struct NormForm {
  using Layer = Norm;
  static std::vector<Param> params(const ModelConfig& c) {
    return Norm::params(prefix, norm_kind(c), c.bias, {DimName::hidden, c.hidden, 1}, over_tokens);
  }
  static Norm make(Context&, const ModelConfig& c, ParamStore& store) { return make_norm(prefix, c, store); }
  static Tensor forward(const Norm& l, Context& ctx, const Tensor& x, const Tensor&, Norm::Saved& s) {
    return l.forward(ctx, x, s);
  }
  static Tensor backward(const Norm& l, Context& ctx, const Tensor& dy, const Tensor&, Norm::Saved& s) {
    return l.backward(ctx, dy, {}, s);
  }
};

struct MlpForm {
  using Layer = Mlp;
  static std::vector<Param> params(const ModelConfig& c) { return Mlp::params(prefix, c); }
  static Mlp make(Context& ctx, const ModelConfig& c, ParamStore& store) { return Mlp(prefix, c, store, ctx.axes, ctx.layout); }
  static Tensor forward(const Mlp& l, Context& ctx, const Tensor& x, const Tensor&, Mlp::Saved& s) {
    return l.forward(ctx, x, s);
  }
  static Tensor backward(const Mlp& l, Context& ctx, const Tensor& dy, const Tensor&, Mlp::Saved& s) {
    return l.backward(ctx, dy, s);
  }
};

struct MoeForm {
  using Layer = Moe;
  static std::vector<Param> params(const ModelConfig& c) { return Moe::params(prefix, c); }
  static Moe make(Context& ctx, const ModelConfig& c, ParamStore& store) {
    return Moe(prefix, c, c.moe.first_dense_layers, store, ctx.axes, ctx.layout);
  }
  static Tensor forward(const Moe& l, Context& ctx, const Tensor& x, const Tensor&, Moe::Saved& s) {
    return l.forward(ctx, x, s);
  }
  static Tensor backward(const Moe& l, Context& ctx, const Tensor& dy, const Tensor&, Moe::Saved& s) {
    return l.backward(ctx, dy, s);
  }
};

/// Attention and whatever holds it: the rotary table is an argument.
template <class L>
struct RotaryForm {
  using Layer = L;
  static std::vector<Param> params(const ModelConfig& c) { return L::params(prefix, c); }
  static L make(Context& ctx, const ModelConfig& c, ParamStore& store) {
    return L(prefix, c, store, ctx.axes, ctx.layout);
  }
  static Tensor forward(const L& l, Context& ctx, const Tensor& x, const Tensor& rope, typename L::Saved& s) {
    return l.forward(ctx, x, rope, s);
  }
  static Tensor backward(const L& l, Context& ctx, const Tensor& dy, const Tensor& rope, typename L::Saved& s) {
    return l.backward(ctx, dy, rope, s);
  }
};

/// A model may leave out the compression of queries.
struct PlainQueriesForm : RotaryForm<LatentAttention> {
  static ModelConfig without(ModelConfig c) {
    c.mla.q_lora_rank = 0;
    return c;
  }
  static std::vector<Param> params(const ModelConfig& c) { return LatentAttention::params(prefix, without(c)); }
  static LatentAttention make(Context& ctx, const ModelConfig& c, ParamStore& store) {
    return LatentAttention(prefix, without(c), store, ctx.axes, ctx.layout);
  }
};

/// The first block with a mixture layer, where the family has any.
struct BlockForm : RotaryForm<Block> {
  static int64_t layer(const ModelConfig& c) { return c.mixture_layers() > 0 ? c.moe.first_dense_layers : 0; }
  static std::vector<Param> params(const ModelConfig& c) { return Block::params(prefix, c, layer(c)); }
  static Block make(Context& ctx, const ModelConfig& c, ParamStore& store) {
    return Block(prefix, c, layer(c), store, ctx.axes, ctx.layout);
  }
};

template <class Form>
class Adapter : public AnyLayer {
 public:
  Adapter(Context& ctx, const ModelConfig& c, ParamStore& store)
      : layer_(Form::make(ctx, c, store)),
        rope_(c.family == "gpt2" ? Tensor() : make_rope_table(ctx, c, ctx.sequence)) {}
  Tensor forward(Context& ctx, const Tensor& x, std::shared_ptr<void>& saved) const override {
    auto s = std::make_shared<Saved>();
    saved = s;
    return Form::forward(layer_, ctx, x, rope_, *s);
  }
  Tensor backward(Context& ctx, const Tensor& dy, const std::shared_ptr<void>& saved) const override {
    return Form::backward(layer_, ctx, dy, rope_, *static_cast<Saved*>(saved.get()));
  }

 private:
  using Saved = typename Form::Layer::Saved;
  typename Form::Layer layer_;
  Tensor rope_;
};

template <class Form>
LayerEntry entry(const char* name, const char* family) {
  return {name, family, &Form::params,
          [](Context& ctx, const ModelConfig& c, ParamStore& store) -> std::unique_ptr<AnyLayer> {
            return std::make_unique<Adapter<Form>>(ctx, c, store);
          }};
}

}  // namespace

const std::vector<LayerEntry>& layer_list() {
  static const std::vector<LayerEntry> all = {
      entry<NormForm>("layer norm", "gpt2"),
      entry<NormForm>("rms norm", "llama"),
      entry<RotaryForm<Attention>>("attention with biases", "gpt2"),
      entry<RotaryForm<Attention>>("attention with rotary and grouped heads", "llama"),
      entry<RotaryForm<Attention>>("attention with norms of q and k", "qwen3"),
      entry<RotaryForm<LatentAttention>>("latent attention", "deepseek"),
      entry<PlainQueriesForm>("latent attention without compression of queries", "deepseek"),
      entry<MlpForm>("mlp with gelu", "gpt2"),
      entry<MlpForm>("mlp with a gate", "llama"),
      entry<MoeForm>("mixture layer", "mixtral"),
      entry<MoeForm>("mixture layer with groups and shared experts", "deepseek"),
      entry<BlockForm>("block", "gpt2"),
      entry<BlockForm>("block", "llama"),
      entry<BlockForm>("block", "qwen3"),
      entry<BlockForm>("block", "mixtral"),
      entry<BlockForm>("block", "deepseek"),
  };
  return all;
}

}  // namespace orthant
