#pragma once

#include <string>
#include <vector>

#include "io/layout_fit.h"

namespace polyhead::io {

struct Candidates {
  std::vector<Fit> fits;    // in the order of find_attention()
  std::vector<Fit> misses;  // nearest first
};

Candidates find_candidates(const std::vector<NamedTensor>& tensors, const TensorIndex& index);

// "torch" at "encoder.layers.0.self_attn."
std::string describe(const Place& place);

}  // namespace polyhead::io
