// Chooses how many random cases a test runs, from the environment variable POLYHEAD_TEST_EFFORT.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <vector>

namespace polyhead::test {

inline std::string_view effort() {
  const char* set = std::getenv("POLYHEAD_TEST_EFFORT");
  return set == nullptr ? "" : set;
}

// With POLYHEAD_TEST_EFFORT=quick, which scripts/test sets, a test runs fewer cases; with `emulated`, for emulated processors, still fewer. Without the
// variable a test runs all cases.
inline bool emulated() { return effort() == "emulated"; }
inline bool quick() { return effort() == "quick" || emulated(); }

// Returns the seeds first, first + 1, …, first + count - 1. If quick(), returns only the first quarter of them, but at least 40 seeds.
inline std::vector<std::uint64_t> seeds(std::uint64_t first, std::uint64_t count) {
  const std::uint64_t few = std::max<std::uint64_t>(count / 4, 40);
  std::vector<std::uint64_t> list(quick() ? std::min(few, count) : count);
  std::iota(list.begin(), list.end(), first);
  return list;
}

// Returns the seeds of a test that compares each instruction set with the reference: all `count` seeds or, on an emulated processor, the first eighth, but at
// least 20, because a case takes ten times as long there. What does not depend on the instruction set has already been tested on the real processor.
inline std::vector<std::uint64_t> seeds_of_kernels(std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint64_t> list(emulated() ? std::max<std::uint64_t>(count / 8, 20) : count);
  std::iota(list.begin(), list.end(), first);
  return list;
}

}  // namespace polyhead::test
