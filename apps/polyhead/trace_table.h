// The steps of a traced layer as a table and as JSON.
#pragma once

#include <span>
#include <string>

#include "json.h"
#include "trace_sentences.h"

namespace polyhead::app {

// A table with the columns step, where, shape, letters and meaning, at most `width` terminal columns wide. If the terminal is too narrow, the column letters
// is left out; if that is not enough, the meaning is written below its step; if that is not enough either, each step becomes a paragraph.
std::string trace_table(std::span<const TraceStep> steps, std::size_t width);

// Explains the letters of the shapes: "B = 2 sequences, N = 5 heads, ..."
std::string legend(const nn::MultiHeadAttentionConfig& config, const Shape& weights, std::int64_t keys);

Json trace_json(std::span<const TraceStep> steps, bool values);

}  // namespace polyhead::app
