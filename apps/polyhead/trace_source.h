// The steps in which two sources compute what a step of the trace shows as one: where they fold the heads into the batch, or move the axis.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "polyhead/nn/trace.h"

namespace polyhead::app {

struct SourceStep {
  std::string code;  // "permute(0,2,1,3)"
  Tensor value;      // its result
};

bool has_source_steps(std::string_view layout);

// Of the projections' splitting into heads, and of the heads' merging. Empty for other steps and for layouts whose source does no more than the trace says.
// `before`: what is split, or merged.
std::vector<SourceStep> source_steps(std::string_view layout, const nn::MultiHeadAttentionConfig& config, int input_rank, const nn::TraceStep& step, const Tensor& before);

}  // namespace polyhead::app
