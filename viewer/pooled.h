// Pooled maps, for texts that are too long for a map of all pairs of tokens. A cell of a pooled map is a block of queries by a block of keys.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "polyhead/viewer.h"

namespace polyhead::viewer {

void check_pooled(const Text& set);  // throws an Error if the set's maps are pooled and do not fit its tokens
void add_pooled(nlohmann::json& json, const Text& set);

// Converts the means or sums of a pooled map to shares. The share of a cell is the attention that a query of the cell's block gives to all keys of the block,
// averaged over the queries.
void make_shares(std::span<float> map, const Text& set);

}  // namespace polyhead::viewer
