#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace polyhead::nn {

// Returns a seed for part `number` of something that has one seed: a layer of a model, a use of dropout in a layer, a step of a run. Calls nest:
// derive_seed(derive_seed(seed, step), layer). The seed is a Philox hash of both numbers, so that different parts do not get equal seeds by accident.
std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t number);

}  // namespace polyhead::nn
#pragma GCC visibility pop
