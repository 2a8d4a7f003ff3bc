// The steps in which the code of Dive into Deep Learning and of AlphaFold splits and merges heads. That code folds the heads into the batch or moves the
// axis, so it has more steps than polyhead's trace.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "polyhead/nn/trace.h"

namespace polyhead::app {

struct SourceStep {
  std::string code;  // "permute(0,2,1,3)"
  Tensor value;      // the tensor that `code` returns
};

bool has_source_steps(std::string_view layout);

// The steps of the source code that split a projection into heads, or merge the heads. Empty for other steps, and for layouts whose source code has no
// further steps. `before` is the value that is split or merged.
std::vector<SourceStep> source_steps(std::string_view layout, const nn::MultiHeadAttentionConfig& config, int input_rank, const nn::TraceStep& step, const Tensor& before);

}  // namespace polyhead::app
