// The steps of a layer's trace in words.
#pragma once

#include <string>
#include <vector>

#include "polyhead/nn/trace.h"

namespace polyhead::app {

// What the source of a layer calls its projections; part of TraceStep::where.
struct TraceNames {
  std::string q = "q", k = "k", v = "v", output = "output", gate = "gate";
};

struct TraceStep {
  std::string step;     // "scores"
  std::string where;    // the input, module or expression that gives the value: "W_q(query)"
  std::string letters;  // of the value's extents: "[B,N,T,H]"
  std::string meaning;  // one sentence, with the sizes at hand
  Tensor value;

  const Shape& shape() const { return value.shape(); }
};

std::vector<TraceStep> trace_sentences(const nn::MultiHeadAttention& layer, const nn::AttentionInput& input, const nn::AttentionOptions& options,
                                       const TraceNames& names);

}  // namespace polyhead::app
