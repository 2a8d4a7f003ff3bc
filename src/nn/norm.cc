#include "polyhead/nn/norm.h"

#include "nn/add_norm.h"
#include "nn/check.h"
#include "nn/normalise.h"

namespace polyhead::nn {
namespace {

Normalisation of(const Norm& norm, const char* of_layer_norm, const char* of_rms_norm) {
  const bool centred = norm.kind == NormKind::layer_norm;
  return {centred ? of_layer_norm : of_rms_norm, norm.weight, norm.bias, norm.epsilon, centred, norm.weight_offset};
}

Normalisation forward_of(const Norm& norm) { return of(norm, "LayerNorm.forward", "RMSNorm.forward"); }

}  // namespace

Norm::Norm(const NormConfig& config)
    : Norm(config.kind == NormKind::layer_norm ? Norm(LayerNorm({.width = config.width, .epsilon = config.epsilon, .dtype = config.dtype}))
                                               : Norm(RMSNorm({.width = config.width, .epsilon = config.epsilon, .dtype = config.dtype}))) {}

Norm::Norm(LayerNorm norm) : weight(std::move(norm.weight)), bias(std::move(norm.bias)), epsilon(norm.epsilon) {}

Norm::Norm(RMSNorm norm) : weight(std::move(norm.weight)), epsilon(norm.epsilon), weight_offset(norm.weight_offset), kind(NormKind::rms_norm) {}

void Norm::forward(ConstTensorView x, TensorView y, const RunOptions& options) const { normalise(forward_of(*this), x, y, options.executor); }

void internal::add_and_normalise(const Norm& norm, ConstTensorView x, TensorView sums, TensorView y, Executor* executor) {
  nn::add_and_normalise(forward_of(norm), x, sums, y, executor);
}

void Norm::backward(ConstTensorView x, ConstTensorView d_y, const Gradients<Norm>& gradients, const RunOptions& options) const {
  norm_backward(of(*this, "LayerNorm.backward", "RMSNorm.backward"), *this, x, d_y, gradients, options);
}

}  // namespace polyhead::nn
