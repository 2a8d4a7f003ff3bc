// Makes the part of a page for one text, from the run of a model in transformers' format.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "polyhead/models/any_text_model.h"
#include "polyhead/viewer.h"

namespace polyhead::app {

// As viewer::pooled_sides, for texts of so many tokens to which the model adds `generate`. Maps of a model with two sides are never pooled: Error if a page has no room for all.
std::vector<std::int64_t> pooled_sides(const models::AnyTextModel::Sizes& sizes, std::span<const std::int64_t> tokens, std::int64_t generate, std::int64_t most_numbers = viewer::kMaxAttentionWeights);

// The set of maps that the page opens with, and further tabs: of a model with two sides, first what its decoder read of the text, if it wrote something. `text`: as the
// reader knows it. The views are those of `run`, which outlives the page.
viewer::Text page_text(std::string text, const models::TextRun& run, std::vector<viewer::WithoutHead> without, std::int64_t left_out);

}  // namespace polyhead::app
