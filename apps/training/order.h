#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polyhead::training {

// The numbers 0 to count - 1 in an order that depends on count and seed only.
std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed);

// Which `size` of `count` examples step `number` (from 1) takes: epoch after epoch, each in an order of its own. The last batch of an epoch goes
// on in the next one.
std::vector<std::int64_t> batch_of_step(std::int64_t number, std::int64_t size, std::int64_t count, std::uint64_t seed);

// All examples in batches of `size` of like lengths; the last one may be smaller. order_seed: which of equal length come first; batch_seed: the order
// of the batches.
std::vector<std::vector<std::int64_t>> batches_of_like_length(std::span<const std::int64_t> lengths, std::int64_t size, std::uint64_t order_seed, std::uint64_t batch_seed);

}  // namespace polyhead::training
