// Sets of positions as ascending ranges, and the rows of a tensor that holds one row for each position.
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

// Returns the positions of every rank, given the number of positions on each. Error if zigzag order requires other numbers; `what` and `letter` name
// them in its message.
std::vector<std::vector<Positions>> slices_of(SliceOrder order, const std::vector<std::int64_t>& lengths, const char* what, char letter);

}  // namespace polyhead::distributed
