// A norm that is either a layer norm or an RMS norm, as a layer's configuration says.
#pragma once

#include "polyhead/nn/layer_norm.h"
#include "polyhead/nn/rms_norm.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

enum class NormKind : std::uint8_t { layer_norm, rms_norm };

struct NormConfig {
  std::int64_t width = 0;
  NormKind kind = NormKind::layer_norm;
  double epsilon = 1e-5;  // added to the variance or to the mean of x^2; see LayerNorm and RMSNorm
  DType dtype = DType::f32;
};

// Computes the same as a LayerNorm or RMSNorm with these parameters.
struct Norm : Module<Norm> {
  Tensor weight;  // [width]
  Tensor bias;    // [width]; absent in an RMS norm, and possibly in a layer norm
  double epsilon = 1e-5;
  double weight_offset = 0;  // see RMSNorm::weight_offset; 0 for a layer norm
  NormKind kind = NormKind::layer_norm;

  Norm() = default;
  explicit Norm(const NormConfig& config);
  Norm(LayerNorm norm);  // NOLINT(google-explicit-constructor)
  Norm(RMSNorm norm);    // NOLINT(google-explicit-constructor)

  std::int64_t width() const { return weight.extent(0); }

  // The arguments are those of LayerNorm::forward() and LayerNorm::backward().
  void forward(ConstTensorView x, TensorView y, const RunOptions& options = {}) const;
  void backward(ConstTensorView x, ConstTensorView d_y, const Gradients<Norm>& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("weight", self.weight...);
    f("bias", self.bias...);
    f("epsilon", self.epsilon...);
    f("weight_offset", self.weight_offset...);
    f("kind", self.kind...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
