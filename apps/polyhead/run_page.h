// Makes the part of a page for one text, from the run of a model that transformers saved.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "polyhead/models/any_text_model.h"
#include "polyhead/viewer.h"

namespace polyhead::app {

// Calls viewer::pooled_sides() for texts of these numbers of tokens, to each of which the model adds `generate` tokens. Maps of an encoder-decoder are never
// pooled: Error if a page has no room for all of them.
std::vector<std::int64_t> pooled_sides(const models::AnyTextModel::Sizes& sizes, std::span<const std::int64_t> tokens, std::int64_t generate, std::int64_t most_numbers = viewer::kMaxAttentionWeights);

// The sets of maps of a text: the one with which the page opens, and the further tabs. For an encoder-decoder that has generated tokens, the first set is the
// cross-attention. `text` is the text as the user gave it. The result has views of `run`, which must outlive the page.
viewer::Text page_text(std::string text, const models::TextRun& run, std::vector<viewer::WithoutHead> without, std::int64_t left_out);

inline constexpr const char* kScatter = "#heads=scatter";  // the address of a page that opens with the scatter of all heads

// The address with which a page opens: `first`, or "" if the page shall decide. by_norms: the page opens with norm-weighted maps.
std::string address(std::string first, bool by_norms);

}  // namespace polyhead::app
