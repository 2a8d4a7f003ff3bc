// Normal initialisation of a whole model. It replaces the initial values that the layers' constructors drew.
#pragma once

#include <functional>

#include "polyhead/nn/module.h"
#include "polyhead/nn/seed.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct NormalInitialisation {
  double deviation = 0.02;
  // Above 0: matrices whose products are added to a residual stream get deviation / sqrt(2 residual_layers), because residual_layers layers add two
  // outputs each to the stream (Radford et al. 2019, section 2.3). Error if there is no such matrix.
  std::int64_t residual_layers = 0;
  Seed seed;
  // Returns whether the products of a matrix are added to a residual stream. Absent: true for names that end in "attention.output.weight" or
  // "feed_forward.output.weight", as encoder and decoder layers name them.
  std::function<bool(const std::string& name, const Tensor& parameter)> adds_to_residual{};
};

// Draws tensors of two and more dimensions from a normal distribution with mean 0. Sets other tensors named "bias" to 0. All remaining tensors keep their
// values: the `weight` of each norm, and the bias of an attention layer's gate ("gate.bias" beside "q.weight"), so that the gate starts open. A parameter's values
// depend on the seed and on the parameter's place in the list.
void initialise_normal(const NamedParameters& parameters, const NormalInitialisation& options);
template <VisitsTensors M>
void initialise_normal(M& module, const NormalInitialisation& options) {
  initialise_normal(parameters(module), options);
}

}  // namespace polyhead::nn
#pragma GCC visibility pop
