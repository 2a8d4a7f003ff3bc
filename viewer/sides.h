// What a set of maps has besides words and attention weights: name, axes, key mask, known links, gate, pair bias and further sets (tabs).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "polyhead/tensor.h"
#include "polyhead/viewer.h"
#include "viewer/encoding.h"

namespace polyhead::viewer {

std::vector<const Text*> sets_of(const Text& text);  // returns the text itself and then its tabs
std::vector<const Text*> sets_of(const Page& page);
std::int64_t numbers_of(const Text& set);            // number of attention weights and gates that the page stores for the set

void check_sides(const Text& set);
void add_sides(nlohmann::json& json, const Text& set, Encoding encoding);
Tensor without_bias(const Text& set);  // returns the attention weights [layers,heads,T,S] float32 that the model would have without set.pair_bias

}  // namespace polyhead::viewer
