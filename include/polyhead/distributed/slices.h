// Slices: the positions of a sequence that each rank holds.
#pragma once

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead::distributed {

// Positions [first, last).
struct Positions {
  std::int64_t first = 0, last = 0;
  std::int64_t count() const { return last - first; }
  friend bool operator==(const Positions&, const Positions&) = default;
};

// contiguous: each rank holds one range of positions, of any length, in the order of the ranks. zigzag: the sequence is cut into 2 R ranges
// (R ranks), and rank r holds ranges r and 2 R - 1 - r, one after the other: with a causal mask all ranks then have the same work (as in
// striped attention, Brandon et al. 2023, and llama 3's context parallelism).
enum class SliceOrder : std::uint8_t { contiguous, zigzag };

// Returns the slice of a rank if `length` positions are cut evenly: range i of n is [length i / n, length (i + 1) / n), rounded down. A slice has at most
// two ranges, in ascending order; ranges that touch are joined.
std::vector<Positions> slice_of(SliceOrder order, std::int64_t length, int rank, int ranks);
std::int64_t slice_length(SliceOrder order, std::int64_t length, int rank, int ranks);

}  // namespace polyhead::distributed
#pragma GCC visibility pop
