// Functions on sets of positions, which are lists of ascending ranges. A tensor may hold one row for each position of a set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "polyhead/distributed/slices.h"

namespace polyhead::distributed {

std::int64_t count_of(const std::vector<Positions>& ranges);

// Sorts the ranges, removes empty ones, and merges ranges that touch or overlap.
std::vector<Positions> joined(std::vector<Positions> ranges);

// Returns the row of a position that lies in one of the ranges.
std::int64_t row_of(const std::vector<Positions>& ranges, std::int64_t position);

// Returns the positions of every rank, given the number of positions on each rank. Error if zigzag order requires other numbers than these; `what` and `letter`
// name the positions in the message.
std::vector<std::vector<Positions>> slices_of(SliceOrder order, const std::vector<std::int64_t>& lengths, const char* what, char letter);

}  // namespace polyhead::distributed
