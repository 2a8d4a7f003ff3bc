#pragma once

#include <cstdint>
#include <vector>

namespace polyhead::training {

// The numbers 0 to count - 1 in an order that depends on count and seed only.
std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed);

// Which `size` of `count` examples step `number` (from 1) takes: epoch after epoch, each in an order of its own. The last batch of an epoch goes
// on in the next one.
std::vector<std::int64_t> batch_of_step(std::int64_t number, std::int64_t size, std::int64_t count, std::uint64_t seed);

}  // namespace polyhead::training
