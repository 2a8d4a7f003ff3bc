// The steps of a traced layer as a table and as JSON.
#pragma once

#include <span>
#include <string>

#include "json.h"
#include "trace_sentences.h"

namespace polyhead::app {

// Columns step, where, shape, letters, meaning in at most `width` columns of the terminal. If these are too few, the letters are left
// out; if they still are, the meaning moves below its step; at last each step becomes a paragraph.
std::string trace_table(std::span<const TraceStep> steps, std::size_t width);

// "B = 2 sequences, N = 5 heads, ..."
std::string legend(const nn::MultiHeadAttentionConfig& config, const Shape& weights, std::int64_t keys);

Json trace_json(std::span<const TraceStep> steps, bool values);

}  // namespace polyhead::app
