// Pooled maps, for texts that are too long for a map of all pairs of tokens. A cell of a pooled map is a block of queries by a block of keys.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "polyhead/viewer.h"

namespace polyhead::viewer {

void check_pooled(const Text& set);  // Error if the pooled maps do not fit the tokens; does nothing for maps that are not pooled
void add_pooled(nlohmann::json& json, const Text& set);

// Converts the means or sums of a pooled map to shares. A share is the attention that a query of the block gives to all keys of the block, on average.
void make_shares(std::span<float> map, const Text& set);

}  // namespace polyhead::viewer
