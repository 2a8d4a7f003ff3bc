#pragma once

#include <array>
#include <string_view>

#include "polyhead/executor.h"
#include "polyhead/nn/module.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

enum class Activation : std::uint8_t { relu, gelu, gelu_tanh, sigmoid, tanh, silu, quick_gelu };

struct ActivationInfo {
  Activation activation;
  std::string_view name;
};

// relu       max(x, 0); the derivative at 0 is 0
// gelu       x Phi(x) = x/2 (1 + erf(x/sqrt(2)))                             (Hendrycks and Gimpel 2016)
// gelu_tanh  x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))                    (approximation in the same paper: GPT-2, ALBERT's "gelu_new")
// sigmoid    1 / (1 + exp(-x))
// silu       x / (1 + exp(-x))                                                (Elfwing et al. 2018; "swish" in Ramachandran et al. 2017)
// quick_gelu x / (1 + exp(-1.702 x))                                          (approximation in Hendrycks and Gimpel 2016: CLIP)
inline constexpr std::array<ActivationInfo, 7> kActivations{{
    {Activation::relu, "relu"},
    {Activation::gelu, "gelu"},
    {Activation::gelu_tanh, "gelu_tanh"},
    {Activation::sigmoid, "sigmoid"},
    {Activation::tanh, "tanh"},
    {Activation::silu, "silu"},
    {Activation::quick_gelu, "quick_gelu"},
}};

Activation find_activation(std::string_view name);  // Throws an Error that lists the known names if `name` is not one of them.

// Computes y[i] = f(x[i]) for the activation f. x and y have one shape and one floating dtype, and any strides. y may be the same view as x; otherwise y may
// not overlap x.
void activate(Activation activation, ConstTensorView x, TensorView y, Executor* executor = nullptr);

// Computes the gradient d_x[i] = f'(x[i]) d_y[i]. d_x may be the same view as d_y.
void activate_backward(Activation activation, ConstTensorView x, ConstTensorView d_y, TensorView d_x, Write d_x_write = Write::replace,
                       Executor* executor = nullptr);

}  // namespace polyhead::nn
#pragma GCC visibility pop
