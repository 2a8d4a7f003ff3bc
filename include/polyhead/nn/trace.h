// A layer's forward pass step by step, for reading: what happens, where, with which shape, and the numbers.
#pragma once

#include <string>
#include <vector>

#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::nn {

struct TraceStep {
  std::string step;     // "scores"
  std::string where;    // the input, module or expression that gives the value: "W_q(query)"
  std::string letters;  // of the value's extents: "[B,N,T,H]"
  std::string meaning;  // one sentence, with the sizes at hand
  Tensor value;

  const Shape& shape() const { return value.shape(); }
};

// How the source of a layer calls its linear maps; they appear in TraceStep::where.
struct TraceNames {
  std::string q = "q", k = "k", v = "v", output = "output", gate = "gate";
};

// The steps that the layer has, in order: inputs, mean query, projections, added keys and values, heads, scores, scale, softcap, bias, mask, softmax,
// dropout, weighted values, merged heads, gate, output map. Everything is read from the forward pass itself (what backward gets, and maps over it),
// so the last value is bit for bit what forward() writes. Holds up to seven [*,N,T,S] tensors: meant for small inputs.
std::vector<TraceStep> trace(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionOptions& options = {},
                             const TraceNames& names = {});

}  // namespace polyhead::nn
