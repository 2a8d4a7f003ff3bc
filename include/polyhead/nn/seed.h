#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace polyhead::nn {

// The seed with which a layer's initial parameters are drawn. It has no default, because layers with equal seeds would begin with equal parameters. Make a seed
// for each layer with derive_seed().
struct Seed {
  std::uint64_t value;
  constexpr Seed(std::uint64_t number) : value(number) {}
  constexpr operator std::uint64_t() const { return value; }
};

// Returns the seed of part `number` of a whole that has the seed `seed`: of a layer of a model, a use of dropout in a layer, or a step of a run. Calls may be
// nested: derive_seed(derive_seed(seed, step), layer). The result is a Philox hash of both numbers, so different parts do not get equal seeds by accident.
std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t number);

}  // namespace polyhead::nn
#pragma GCC visibility pop
