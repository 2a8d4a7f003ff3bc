// How many of its random cases a sweep looks at. For sweeps that are slow for another reason than the code under test, as those over processes.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <ranges>
#include <string_view>

namespace polyhead::test {

// POLYHEAD_TEST_EFFORT=quick, as scripts/test sets it; without the variable a test does all that it can.
inline bool quick() {
  const char* effort = std::getenv("POLYHEAD_TEST_EFFORT");
  return effort != nullptr && std::string_view(effort) == "quick";
}

// The seeds first, first + 1, … first + count - 1; quick: the first quarter of them, but at least 40.
inline auto seeds(std::uint64_t first, std::uint64_t count) {
  const std::uint64_t few = count / 4 > 40 ? count / 4 : 40;
  return std::views::iota(first, first + (quick() && few < count ? few : count));
}

}  // namespace polyhead::test
