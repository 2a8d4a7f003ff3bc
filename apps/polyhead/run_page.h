// Makes the part of a page for one text, from the run of a model in transformers' format.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "polyhead/models/any_text_model.h"
#include "polyhead/viewer.h"

namespace polyhead::app {

// Calls viewer::pooled_sides for texts of so many tokens, to each of which the model adds `generate` tokens. Maps of a model with two sides are never pooled:
// Error if a page has no room for all.
std::vector<std::int64_t> pooled_sides(const models::AnyTextModel::Sizes& sizes, std::span<const std::int64_t> tokens, std::int64_t generate, std::int64_t most_numbers = viewer::kMaxAttentionWeights);

// The set of maps that the page opens with, and its further tabs. For a model with two sides that has written something, the first set is the cross-attention.
// `text` is the text as the user gave it. The sets are views of `run`, which must outlive the page.
viewer::Text page_text(std::string text, const models::TextRun& run, std::vector<viewer::WithoutHead> without, std::int64_t left_out);

}  // namespace polyhead::app
