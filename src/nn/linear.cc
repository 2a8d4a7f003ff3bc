#include "polyhead/nn/linear.h"

#include "core/parameter_cache.h"
#include "cpu/gemm/gemm.h"
#include "cpu/select.h"
#include "nn/check.h"
#include "nn/elementwise.h"
#include "nn/initialiser.h"
#include "nn/packed_linear.h"
#include "nn/parameter_gradient.h"

namespace polyhead::nn {
namespace {

void require_parameters(const char* operation, const Linear& linear) {
  require_weight(operation, linear.weight, 2, "[out,in]");
  if (linear.bias) require_exactly(operation, {"bias", linear.bias}, {linear.out_width()}, linear.weight.dtype());
}

}  // namespace

Linear::Linear(const LinearConfig& config) {
  require(config.in_width >= 1 && config.out_width >= 1, "Linear: in_width is ", config.in_width, " and out_width ", config.out_width,
          "; both must be at least 1");
  require(is_floating(config.dtype), "Linear: the parameters must be floating, not ", config.dtype);
  weight = Tensor(config.dtype, {config.out_width, config.in_width});
  if (config.bias) bias = Tensor(config.dtype, {config.out_width});
  Initialiser(config.seed).linear(weight, bias);
}

Linear::Linear(Tensor weight_, Tensor bias_) : weight(std::move(weight_)), bias(std::move(bias_)) { require_parameters("Linear", *this); }

PackedLinear::PackedLinear(const Linear& linear, PackFor use, const RunOptions& options) : linear_(&linear), workspace_(options.workspace) {
  const Workspace* workspace = options.workspace;
  const bool cached = caches_parameters(workspace);
  if (!cached && use == PackFor::one_product) return;
  require_parameters("Linear.forward", linear);
  const auto packed = [&](const Workspace* from) {
    return std::make_shared<const cpu::PackedMatrix>(linear.weight.view().transpose(0, 1), 1, options.executor, from);
  };
  if (cached) {
    weight_ = std::static_pointer_cast<const cpu::PackedMatrix>(
        cached_parameter(*workspace, linear.weight, &cpu::current_gemm_kernels(linear.weight.dtype()), [&] { return packed(nullptr); }));
  } else {
    weight_ = packed(workspace);
  }
}

void PackedLinear::forward(ConstTensorView x, TensorView y, Executor* executor) const {
  constexpr const char* kOperation = "Linear.forward";
  const Tensor &weight = linear_->weight, &bias = linear_->bias;
  require_parameters(kOperation, *linear_);
  require_rows(kOperation, {"x", x}, "in_width", linear_->in_width(), weight.dtype());
  require_exactly(kOperation, {"y", y}, with_width(x.shape(), linear_->out_width()), weight.dtype());
  require_no_overlap(kOperation, {"y", y}, {{"x", x}, {"weight", weight}, {"bias", bias}});
  // Computes y[r,o] = sum_i x[r,i] weight[o,i] + bias[o].
  cpu::gemm({.a = x, .b = weight.view().transpose(0, 1), .c = y, .bias = bias, .packed = weight_.get()}, executor, workspace_);
}

void Linear::forward(ConstTensorView x, TensorView y, const RunOptions& options) const {
  PackedLinear(*this, PackFor::one_product, options).forward(x, y, options.executor);
}

void Linear::backward(ConstTensorView x, ConstTensorView d_y, const Gradients<Linear>& gradients, const RunOptions& options) const {
  constexpr const char* kOperation = "Linear.backward";
  const TensorView d_x = gradients.x;
  Linear* const grads = gradients.parameters;
  require_parameters(kOperation, *this);
  require_rows(kOperation, {"d_y", d_y}, "out_width", out_width(), weight.dtype());
  const Shape x_shape = with_width(d_y.shape(), in_width());
  if (d_x) {
    require_exactly(kOperation, {"d_x", d_x}, x_shape, weight.dtype());
    require_no_overlap(kOperation, {"d_x", d_x}, {{"x", x}, {"d_y", d_y}, {"weight", weight}});
  }
  if (grads != nullptr) {
    require_parameters_may_change(kOperation, false, options.workspace);
    require_exactly(kOperation, {"x", x}, x_shape, weight.dtype());
    require_gradients(kOperation, *this, *grads, {{"x", x}, {"d_y", d_y}}, {"d_x", d_x});
  }
  if (d_x) {
    // d_x[r,i] = sum_o d_y[r,o] weight[o,i]
    cpu::gemm({.a = d_y, .b = weight, .c = d_x, .add = gradients.x_write == Write::add}, options.executor, options.workspace);
  }
  if (grads == nullptr) return;
  // d_weight[o,i] = sum_r d_y[r,o] x[r,i]
  write_gradient(grads->weight, gradients.parameters_write, options, [&](TensorView d_weight) {
    cpu::gemm({.a = d_y.move_axis(-1, 0), .b = x, .c = d_weight, .k_axes = d_y.rank() - 1}, options.executor, options.workspace);
  });
  if (!bias) return;
  // d_bias[o] = sum_r d_y[r,o]
  write_gradient(grads->bias, gradients.parameters_write, options, [&](TensorView d_bias) { sum_to(d_y, d_bias); });
}

}  // namespace polyhead::nn
