// The number of random cases of a sweep. For sweeps that are slow for other reasons than the code under test, such as those over processes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <vector>

namespace polyhead::test {

// True if POLYHEAD_TEST_EFFORT=quick, as set by scripts/test; without the variable a test does its full work.
inline bool quick() {
  const char* effort = std::getenv("POLYHEAD_TEST_EFFORT");
  return effort != nullptr && std::string_view(effort) == "quick";
}

// The seeds first, first + 1, … first + count - 1; quick: the first quarter of them, but at least 40.
inline std::vector<std::uint64_t> seeds(std::uint64_t first, std::uint64_t count) {
  const std::uint64_t few = std::max<std::uint64_t>(count / 4, 40);
  std::vector<std::uint64_t> list(quick() ? std::min(few, count) : count);
  std::iota(list.begin(), list.end(), first);
  return list;
}

}  // namespace polyhead::test
