// The list of layers, each behind one interface: what stands here is tested without further work (gradients against
// finite differences, one backend against another, split over ranks against whole).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "orthant/context.hpp"
#include "orthant/model_config.hpp"

namespace orthant {

/// A layer whose Saved is hidden. x, y, dx, dy: [tokens of the shard, hidden].
class AnyLayer {
 public:
  virtual ~AnyLayer() = default;
  virtual Tensor forward(Context& ctx, const Tensor& x, std::shared_ptr<void>& saved) const = 0;
  virtual Tensor backward(Context& ctx, const Tensor& dy, const std::shared_ptr<void>& saved) const = 0;
};

struct LayerEntry {
  std::string name;
  std::string family;  ///< the family that uses the layer in this form
  std::vector<Param> (*params)(const ModelConfig& config);
  /// `store` holds the layer's `params`. Layers refer to store, axes and layout: these must outlive them.
  std::unique_ptr<AnyLayer> (*make)(Context& ctx, const ModelConfig& config, ParamStore& store);
};

const std::vector<LayerEntry>& layer_list();

}  // namespace orthant
