#include "polyhead/nn/layer_norm.h"

#include "nn/check.h"
#include "nn/normalise.h"

namespace polyhead::nn {
namespace {

Normalisation norm_of(const char* operation, const LayerNorm& layer) { return {operation, layer.weight, layer.bias, layer.epsilon, true}; }

}  // namespace

LayerNorm::LayerNorm(const LayerNormConfig& config) : epsilon(config.epsilon) {
  require(config.width >= 1, "LayerNorm: width is ", config.width, "; it must be at least 1");
  require(is_floating(config.dtype), "LayerNorm: the parameters must be floating, not ", config.dtype);
  weight = Tensor(config.dtype, {config.width});
  fill(weight, 1);
  if (config.bias) bias = Tensor(config.dtype, {config.width});
  require_norm(norm_of("LayerNorm", *this));
}

LayerNorm::LayerNorm(Tensor weight_, Tensor bias_, double epsilon_)
    : weight(std::move(weight_)), bias(std::move(bias_)), epsilon(epsilon_) {
  require_norm(norm_of("LayerNorm", *this));
}

void LayerNorm::forward(ConstTensorView x, TensorView y, const RunOptions& options) const {
  normalise(norm_of("LayerNorm.forward", *this), x, y, options.executor);
}

void LayerNorm::backward(ConstTensorView x, ConstTensorView d_y, const Gradients<LayerNorm>& gradients, const RunOptions& options) const {
  norm_backward(norm_of("LayerNorm.backward", *this), *this, x, d_y, gradients, options);
}

}  // namespace polyhead::nn
