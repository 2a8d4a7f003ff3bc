#include "polyhead/nn/layer_norm.h"

#include "nn/add_norm.h"
#include "nn/check.h"
#include "nn/norm.h"

namespace polyhead::nn {
namespace {

constexpr const char* kForward = "LayerNorm.forward";

Norm norm_of(const char* operation, const LayerNorm& layer) { return {operation, layer.weight, layer.bias, layer.epsilon, true}; }

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
  normalise(norm_of(kForward, *this), x, y, options.executor);
}

void internal::add_and_normalise(const LayerNorm& norm, ConstTensorView x, TensorView sums, TensorView y, Executor* executor) {
  nn::add_and_normalise(norm_of(kForward, norm), x, sums, y, executor);
}

void LayerNorm::backward(ConstTensorView x, ConstTensorView d_y, const Gradients<LayerNorm>& gradients, const RunOptions& options) const {
  const Norm norm = norm_of("LayerNorm.backward", *this);
  require_norm(norm);
  LayerNorm* const grads = gradients.parameters;
  if (grads != nullptr) require_gradients(norm.operation, *this, *grads, {{"x", x}, {"d_y", d_y}}, {"d_x", gradients.x});
  norm_backward(norm, x, d_y, gradients.x, gradients.x_write, grads != nullptr ? TensorView(grads->weight) : TensorView(),
                grads != nullptr ? TensorView(grads->bias) : TensorView(), gradients.parameters_write, options);
}

}  // namespace polyhead::nn
