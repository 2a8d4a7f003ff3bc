// Slices: the positions of a sequence that each rank holds.
#pragma once

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead::distributed {

// The positions first to last - 1 of a sequence.
struct Positions {
  std::int64_t first = 0, last = 0;
  std::int64_t count() const { return last - first; }
  friend bool operator==(const Positions&, const Positions&) = default;
};

// Which positions of a sequence each of R ranks holds.
// contiguous: each rank holds one range of positions, of any length, in the order of the ranks.
// zigzag: the sequence is cut into 2 R ranges, and rank r holds range r and then range 2 R - 1 - r. With a causal mask all ranks then have the same work (as in
// striped attention, Brandon et al. 2023, and llama 3's context parallelism).
enum class SliceOrder : std::uint8_t { contiguous, zigzag };

// Returns the positions that a rank holds if `length` positions are cut evenly: of n ranges, range i is [length i / n, length (i + 1) / n), rounded down. The
// result has at most two ranges, in ascending order; two ranges that touch become one.
std::vector<Positions> slice_of(SliceOrder order, std::int64_t length, int rank, int ranks);
std::int64_t slice_length(SliceOrder order, std::int64_t length, int rank, int ranks);

}  // namespace polyhead::distributed
#pragma GCC visibility pop
