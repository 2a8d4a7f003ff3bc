// `polyhead train heads`: trains tasks with 1, 2, 4, 8 and 16 heads and prints a table of scores, times and memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace polyhead::app {

struct HeadsOptions {
  std::filesystem::path data;  // a file of ratings; empty: train only on the teaching grammar
  std::filesystem::path folder;
  std::uint64_t seed = 1;  // the first of five consecutive seeds
  std::optional<std::int64_t> steps{};
  bool json = false;
  const std::atomic<bool>* stop = nullptr;
};

void train_heads(const HeadsOptions& options);

}  // namespace polyhead::app
