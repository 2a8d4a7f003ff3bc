// Measures the heads of a model over many texts, for `polyhead view --texts` and the texts of Python's view().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "polyhead/head_measures.h"
#include "polyhead/models/any_text_model.h"

namespace polyhead::app {

// The machine's memory in bytes, or the limit of this process if it is smaller.
std::uint64_t usable_memory();

// Error if the attention weights of one of the texts do not fit into memory. measure_texts() checks this too; call this
// function before other slow work.
void require_measurable(const models::AnyTextModel::Sizes& sizes, std::span<const models::TokenizedText> texts);

// Runs the model on each text and measures its heads. The maps of a text are freed before the next text. told(i) is called before text i.
viewer::MeasuredTexts measure_texts(const models::AnyTextModel& model, std::vector<models::TokenizedText> texts, const std::function<void(std::size_t)>& told = {});

}  // namespace polyhead::app
