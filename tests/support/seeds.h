// The number of random cases of a sweep. For sweeps that are slow for other reasons than the code under test, such as those over processes.
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

// POLYHEAD_TEST_EFFORT=quick, as scripts/test sets it; without the variable a test does all that it can. `emulated` is quick on an emulated processor.
inline bool emulated() { return effort() == "emulated"; }
inline bool quick() { return effort() == "quick" || emulated(); }

// The seeds first, first + 1, … first + count - 1; quick: the first quarter of them, but at least 40.
inline std::vector<std::uint64_t> seeds(std::uint64_t first, std::uint64_t count) {
  const std::uint64_t few = std::max<std::uint64_t>(count / 4, 40);
  std::vector<std::uint64_t> list(quick() ? std::min(few, count) : count);
  std::iota(list.begin(), list.end(), first);
  return list;
}

// Of a sweep that compares each instruction set with the reference: all, but on an emulated processor, where a case takes ten times as long, the first
// eighth. What does not depend on the set has been looked at by the processor that emulates.
inline std::vector<std::uint64_t> seeds_of_kernels(std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint64_t> list(emulated() ? std::max<std::uint64_t>(count / 8, 20) : count);
  std::iota(list.begin(), list.end(), first);
  return list;
}

}  // namespace polyhead::test
