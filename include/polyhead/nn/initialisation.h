// Draws the initial parameters of a whole model from a normal distribution. They replace the initial values that the layers' constructors drew.
#pragma once

#include <functional>

#include "polyhead/nn/module.h"
#include "polyhead/nn/seed.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct NormalInitialisation {
  double deviation = 0.02;
  // Number of layers that each add two outputs to a residual stream. Above 0: matrices whose products are added to the stream get the deviation `deviation` /
  // sqrt(2 residual_layers) (Radford et al. 2019, section 2.3). Error if there is no such matrix.
  std::int64_t residual_layers = 0;
  Seed seed;
  // Says whether the products of a matrix are added to a residual stream. Absent: true for names that end in "attention.output.weight" or
  // "feed_forward.output.weight", which are the names in encoder and decoder layers.
  std::function<bool(const std::string& name, const Tensor& parameter)> adds_to_residual{};
};

// Draws each tensor of two or more dimensions from a normal distribution with mean 0, and sets other tensors named "bias" to 0. All remaining tensors keep
// their values: the `weight` of each norm, and the bias of an attention layer's gate ("gate.bias" beside "q.weight"), so that the gate starts open. The values
// of a parameter depend on the seed and on its place in the list.
void initialise_normal(const NamedParameters& parameters, const NormalInitialisation& options);
template <VisitsTensors M>
void initialise_normal(M& module, const NormalInitialisation& options) {
  initialise_normal(parameters(module), options);
}

}  // namespace polyhead::nn
#pragma GCC visibility pop
