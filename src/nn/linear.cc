#include "polyhead/nn/linear.h"

#include <vector>

#include "core/dispatch.h"
#include "core/index.h"
#include "cpu/gemm/gemm.h"
#include "nn/check.h"
#include "nn/initialise.h"

namespace polyhead::nn {
namespace {

void require_parameters(const char* operation, const Linear& linear) {
  require(linear.weight && linear.weight.shape().size() == 2 && is_floating(linear.weight.dtype()), operation,
          ": the weight must be a floating tensor [out,in]; ",
          linear.weight ? cat("it is ", linear.weight.dtype(), " ", linear.weight.shape()) : cat("there is none"));
  if (linear.bias) require_parameter(operation, {"bias", linear.bias}, {linear.out_width()}, linear.weight.dtype());
}

// d_bias[o] = sum_r d_y[r,o], in float64 for every storage: there may be many rows, and their terms cancel.
void sum_rows(ConstTensorView d_y, TensorView d_bias) {
  std::vector<double> sums(static_cast<std::size_t>(d_bias.numel()));
  const int row_axes = d_y.rank() - 1;
  dispatch_floating(d_y.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* data = d_y.data<T>();
    for_each_offset<1>(d_y.shape().first(row_axes), {d_y.strides().first(row_axes)}, [&](const auto& row) {
      for (std::size_t o = 0; o < sums.size(); ++o) sums[o] += load(data[row[0] + static_cast<std::int64_t>(o) * d_y.stride(-1)]);
    });
  });
  copy(ConstTensorView(sums.data(), d_bias.shape()), d_bias);
}

}  // namespace

Linear::Linear(const LinearConfig& config) {
  require(config.in_width >= 0 && config.out_width >= 0, "Linear: in_width is ", config.in_width, " and out_width ", config.out_width,
          "; neither may be negative");
  require(is_floating(config.dtype), "Linear: the parameters must be floating, not ", config.dtype);
  weight = Tensor(config.dtype, {config.out_width, config.in_width});
  if (config.bias) bias = Tensor(config.dtype, {config.out_width});
  Initialiser(config.seed).linear(weight, bias);
}

Linear::Linear(Tensor weight_, Tensor bias_) : weight(std::move(weight_)), bias(std::move(bias_)) { require_parameters("Linear", *this); }

void Linear::forward(ConstTensorView x, TensorView y, Executor* executor) const {
  constexpr const char* kOperation = "Linear.forward";
  require_parameters(kOperation, *this);
  require_tensor(kOperation, {"x", x}, weight.dtype());
  require_width(kOperation, {"x", x}, "in_width", in_width());
  require_tensor(kOperation, {"y", y}, weight.dtype());
  require_shape(kOperation, {"y", y}, with_width(x.shape(), out_width()));
  require_separate(kOperation, {"y", y}, {{"x", x}, {"weight", weight}, {"bias", bias}});
  // y[r,o] = sum_i x[r,i] weight[o,i] + bias[o]
  cpu::gemm({.a = x, .b = weight.view().transpose(0, 1), .c = y, .bias = bias}, executor);
}

void Linear::backward(ConstTensorView x, ConstTensorView d_y, TensorView d_x, Linear* grads, Write d_x_write, Executor* executor) const {
  constexpr const char* kOperation = "Linear.backward";
  require_parameters(kOperation, *this);
  require_tensor(kOperation, {"d_y", d_y}, weight.dtype());
  require_width(kOperation, {"d_y", d_y}, "out_width", out_width());
  const Shape x_shape = with_width(d_y.shape(), in_width());
  if (d_x) {
    require_tensor(kOperation, {"d_x", d_x}, weight.dtype());
    require_shape(kOperation, {"d_x", d_x}, x_shape);
    require_separate(kOperation, {"d_x", d_x}, {{"x", x}, {"d_y", d_y}, {"weight", weight}});
  }
  if (grads != nullptr) {
    require_tensor(kOperation, {"x", x}, weight.dtype());
    require_shape(kOperation, {"x", x}, x_shape);
    require_parameter(kOperation, {"grads->weight", grads->weight}, weight.shape(), weight.dtype());
    require_separate(kOperation, {"grads->weight", grads->weight}, {{"x", x}, {"d_y", d_y}, {"weight", weight}, {"d_x", d_x}});
    if (bias) {
      require_parameter(kOperation, {"grads->bias", grads->bias}, bias.shape(), weight.dtype());
      require_separate(kOperation, {"grads->bias", grads->bias}, {{"x", x}, {"d_y", d_y}, {"weight", weight}, {"d_x", d_x}});
    }
  }
  if (d_x) {
    // d_x[r,i] = sum_o d_y[r,o] weight[o,i]
    cpu::gemm({.a = d_y, .b = weight, .c = d_x, .add = d_x_write == Write::add}, executor);
  }
  if (grads == nullptr) return;
  const int row_axes = d_y.rank() - 1;
  // d_weight[o,i] = sum_r d_y[r,o] x[r,i]
  cpu::gemm({.a = d_y.move_axis(-1, 0), .b = x, .c = grads->weight, .k_axes = row_axes}, executor);
  if (bias) sum_rows(d_y, grads->bias);
}

}  // namespace polyhead::nn
