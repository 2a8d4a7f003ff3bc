// Sets of positions as ascending ranges, and the rows of a tensor that holds one row for each position.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "polyhead/distributed/slices.h"

namespace polyhead::distributed {

std::int64_t count_of(const std::vector<Positions>& ranges);

// Sorted, without empty ranges; ranges that touch or overlap become one.
std::vector<Positions> joined(std::vector<Positions> ranges);

// The row of a position that the ranges contain.
std::int64_t row_of(const std::vector<Positions>& ranges, std::int64_t position);

// The positions of every rank, from how many each has. Error if zigzag order asks for other numbers; `what` and `letter` name them in its message.
std::vector<std::vector<Positions>> slices_of(SliceOrder order, const std::vector<std::int64_t>& lengths, const char* what, char letter);

}  // namespace polyhead::distributed
