// How the steps of a layer are shown.
#pragma once

#include <span>
#include <string>

#include "json.h"
#include "polyhead/nn/trace.h"

namespace polyhead::app {

// step / where / shape / letters / meaning in at most `width` columns: the letters go first, then the meaning moves beneath its step,
// then where.
std::string trace_table(std::span<const nn::TraceStep> steps, std::size_t width);

// "B = 2 sequences, N = 5 heads, ..."
std::string legend(const nn::MultiHeadAttentionConfig& config, const Shape& maps, std::int64_t keys);

Json trace_json(std::span<const nn::TraceStep> steps, bool values);

}  // namespace polyhead::app
