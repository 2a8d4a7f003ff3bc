#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polyhead::training {

// The numbers 0 to count - 1 in an order that depends on count and seed only.
std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed);

// The indices of the `size` examples (of `count`) that step `number` (from 1) takes. Each epoch has its own order. A batch that an epoch does not fill
// is completed from the next epoch.
std::vector<std::int64_t> batch_of_step(std::int64_t number, std::int64_t size, std::int64_t count, std::uint64_t seed);

// All examples in batches of `size` with similar lengths; one batch may be smaller. order_seed orders examples of equal length, batch_seed orders
// the batches.
std::vector<std::vector<std::int64_t>> batches_of_like_length(std::span<const std::int64_t> lengths, std::int64_t size, std::uint64_t order_seed, std::uint64_t batch_seed);

}  // namespace polyhead::training
