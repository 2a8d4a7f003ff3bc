// `polyhead train heads`: tasks trained with 1, 2, 4, 8 and 16 heads, and a table of what the number of heads changes.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace polyhead::app {

struct HeadsOptions {
  std::filesystem::path data;  // ratings; empty: only the grammar
  std::filesystem::path folder;
  std::uint64_t seed = 1;  // the first of five
  std::optional<std::int64_t> steps{};
  bool json = false;
  const std::atomic<bool>* stop = nullptr;
};

void train_heads(const HeadsOptions& options);

}  // namespace polyhead::app
