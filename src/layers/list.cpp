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
  static Mlp make(Context& ctx, const ModelConfig& c, ParamStore& store) { return Mlp(prefix, c, store, ctx.axes); }
  static Tensor forward(const Mlp& l, Context& ctx, const Tensor& x, const Tensor&, Mlp::Saved& s) {
    return l.forward(ctx, x, s);
  }
  static Tensor backward(const Mlp& l, Context& ctx, const Tensor& dy, const Tensor&, Mlp::Saved& s) {
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
      entry<MlpForm>("mlp with gelu", "gpt2"),
      entry<MlpForm>("mlp with a gate", "llama"),
      entry<RotaryForm<Block>>("block", "gpt2"),
      entry<RotaryForm<Block>>("block", "llama"),
      entry<RotaryForm<Block>>("block", "qwen3"),
  };
  return all;
}

}  // namespace orthant
