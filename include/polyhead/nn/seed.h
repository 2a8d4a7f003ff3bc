#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace polyhead::nn {

// A seed for part `number` of something that has one seed: a layer of a model, a use of dropout in a layer, a step of a run. Philox of both
// numbers, so that equal seeds do not meet by accident: derive_seed(derive_seed(seed, step), layer).
std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t number);

}  // namespace polyhead::nn
#pragma GCC visibility pop
