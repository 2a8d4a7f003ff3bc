#include "training/order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "polyhead/nn/seed.h"

namespace polyhead::training {

std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[nn::derive_seed(seed, i) % i]);
  return order;
}

std::vector<std::int64_t> batch_of_step(std::int64_t number, std::int64_t size, std::int64_t count, std::uint64_t seed) {
  std::vector<std::int64_t> batch, order;
  std::int64_t epoch = -1;
  for (std::int64_t i = (number - 1) * size; i < number * size; ++i) {
    if (i / count != epoch) order = shuffled(count, nn::derive_seed(seed, static_cast<std::uint64_t>(epoch = i / count)));
    batch.push_back(order[static_cast<std::size_t>(i % count)]);
  }
  return batch;
}

std::vector<std::vector<std::int64_t>> batches_of_like_length(std::span<const std::int64_t> lengths, std::int64_t size, std::uint64_t order_seed, std::uint64_t batch_seed) {
  std::vector<std::int64_t> order = shuffled(std::ssize(lengths), order_seed);
  std::ranges::stable_sort(order, {}, [&](std::int64_t i) { return lengths[static_cast<std::size_t>(i)]; });
  const std::int64_t count = std::ssize(order);
  std::vector<std::vector<std::int64_t>> batches;
  for (const std::int64_t b : shuffled((count + size - 1) / size, batch_seed)) batches.emplace_back(order.begin() + b * size, order.begin() + std::min((b + 1) * size, count));
  return batches;
}

}  // namespace polyhead::training
