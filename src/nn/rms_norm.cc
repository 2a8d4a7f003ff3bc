#include "polyhead/nn/rms_norm.h"

#include "nn/check.h"
#include "nn/normalise.h"

namespace polyhead::nn {
namespace {

Normalisation norm_of(const char* operation, const RMSNorm& layer) { return {operation, layer.weight, {}, layer.epsilon, false, layer.weight_offset}; }

}  // namespace

RMSNorm::RMSNorm(const RMSNormConfig& config) : epsilon(config.epsilon), weight_offset(config.weight_offset) {
  require(config.width >= 1, "RMSNorm: width is ", config.width, "; it must be at least 1");
  require(is_floating(config.dtype), "RMSNorm: the parameters must be floating, not ", config.dtype);
  weight = Tensor(config.dtype, {config.width});
  fill(weight, 1 - weight_offset);
  require_norm(norm_of("RMSNorm", *this));
}

RMSNorm::RMSNorm(Tensor weight_, double epsilon_, double weight_offset_) : weight(std::move(weight_)), epsilon(epsilon_), weight_offset(weight_offset_) {
  require_norm(norm_of("RMSNorm", *this));
}

void RMSNorm::forward(ConstTensorView x, TensorView y, const RunOptions& options) const {
  normalise(norm_of("RMSNorm.forward", *this), x, y, options.executor);
}

void RMSNorm::backward(ConstTensorView x, ConstTensorView d_y, const Gradients<RMSNorm>& gradients, const RunOptions& options) const {
  norm_backward(norm_of("RMSNorm.backward", *this), *this, x, d_y, gradients, options);
}

}  // namespace polyhead::nn
