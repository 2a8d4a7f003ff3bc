// Texts that are too long for a map of all pairs: their pooled maps, each cell a block of queries by a block of keys.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "polyhead/viewer.h"

namespace polyhead::viewer {

void check_pooled(const Text& set);  // does nothing for a text that is not pooled
void add_pooled(nlohmann::json& json, const Text& set);

// Converts the means or sums of a pooled map to shares: the attention that a query of the block gives to all keys of the block, on average.
void make_shares(std::span<float> map, const Text& set);

}  // namespace polyhead::viewer
