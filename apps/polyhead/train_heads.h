// `polyhead train heads`: trains tasks with different numbers of heads, and prints a table (scores, times, memory) and a chart of the scores.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace polyhead::app {

struct HeadsOptions {
  std::filesystem::path data;  // a file of ratings; empty: train only on the teaching grammar
  std::filesystem::path folder;
  std::uint64_t seed = 1;  // the first of five consecutive seeds
  std::optional<std::int64_t> steps{};
  bool is_short = false;  // 3 numbers of heads, 3 seeds and few steps, of the grammar alone
  std::optional<std::int64_t> snapshots{};  // a page of so many snapshots for each number of heads, of the first seed
  std::vector<std::string> texts{};         // what the snapshots show; empty: an example
  bool json = false;
  const std::atomic<bool>* stop = nullptr;
};

// The scores of the models that have this number of heads, one for each seed.
struct HeadScores {
  std::int64_t heads = 0;
  std::vector<double> scores;
};

// Returns a chart with one line for each number of heads. The line marks the scores on an axis that runs from the lowest to the highest score of all lines.
std::string chart(std::span<const HeadScores> rows, std::size_t width);

void train_heads(const HeadsOptions& options);

}  // namespace polyhead::app
