// Normal initialisation of a whole model, in place of the uniform ones that layers have by themselves.
#pragma once

#include <optional>

#include "polyhead/nn/optimizer.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct NormalInitialisation {
  double deviation = 0.02;
  // Above 0: parameters whose names end in "output.weight" get deviation / sqrt(2 residual_layers), because the outputs of so many layers
  // with two parts each are added up (Radford et al. 2019, section 2.3).
  std::int64_t residual_layers = 0;
  std::optional<std::uint64_t> seed{};  // required
};

// Tensors of two and more dimensions are drawn from a normal distribution with mean 0. Of the others those named "bias" become 0, but not a
// gate's; the rest stays, such as the weight of a norm. A parameter's values depend on the seed and on its place in the list.
void initialise_normal(const NamedParameters& parameters, const NormalInitialisation& options);
template <class M>
void initialise_normal(M& module, const NormalInitialisation& options) {
  initialise_normal(parameters(module), options);
}

}  // namespace polyhead::nn
#pragma GCC visibility pop
