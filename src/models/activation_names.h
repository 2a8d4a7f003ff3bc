// Names of activations in config.json, as in `transformers`. "gelu_fast" is not supported: its formula is the tanh form of gelu with one constant rounded
// differently.
#pragma once

#include <string_view>

#include "polyhead/nn/activation.h"

namespace polyhead::models {

struct ActivationName {
  std::string_view name;
  nn::Activation activation;
};

inline constexpr ActivationName kActivationNames[] = {{"gelu", nn::Activation::gelu},
                                                      {"gelu_new", nn::Activation::gelu_tanh},
                                                      {"gelu_pytorch_tanh", nn::Activation::gelu_tanh},
                                                      {"quick_gelu", nn::Activation::quick_gelu},
                                                      {"relu", nn::Activation::relu},
                                                      {"sigmoid", nn::Activation::sigmoid},
                                                      {"silu", nn::Activation::silu},
                                                      {"swish", nn::Activation::silu},
                                                      {"tanh", nn::Activation::tanh}};

}  // namespace polyhead::models
