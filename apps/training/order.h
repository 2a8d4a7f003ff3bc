#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polyhead::training {

// The numbers 0 to count - 1 in an order that depends on count and seed only.
std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed);

// The indices of the `size` examples that step `number` (counted from 1) reads, out of `count` examples. Each epoch has another order. If an epoch ends in the
// middle of a batch, the next epoch fills the batch.
std::vector<std::int64_t> batch_of_step(std::int64_t number, std::int64_t size, std::int64_t count, std::uint64_t seed);

// All examples in batches of `size` with similar lengths; one batch may be smaller. order_seed orders examples of equal length, batch_seed orders
// the batches.
std::vector<std::vector<std::int64_t>> batches_of_like_length(std::span<const std::int64_t> lengths, std::int64_t size, std::uint64_t order_seed, std::uint64_t batch_seed);

}  // namespace polyhead::training
