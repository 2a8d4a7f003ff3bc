// The steps of a layer's trace in words.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "polyhead/nn/trace.h"
#include "trace_source.h"

namespace polyhead::app {

using ProjectionNames = std::map<std::string, std::string>;  // the names of q, k, v, output and gate in the layer's source code: "q" -> "W_q"

struct TraceStep : nn::TraceStep {
  std::string step;     // "scores"
  std::string where;    // the input, module or expression that gives the value: "W_q(query)"
  std::string meaning;  // one sentence, with the sizes of this call
  std::vector<std::pair<std::string, Tensor>> parameters = {};  // the parameters of its projection: "W_q.weight"
  std::vector<SourceStep> source = {};                          // how the layer's source code computes it, if it takes more steps
};

// layout: names the source code to compare with, such as "d2l"; "" for none.
std::vector<TraceStep> trace_sentences(const nn::MultiHeadAttention& layer, const nn::AttentionInput& input, const nn::AttentionOptions& options,
                                       const ProjectionNames& names, std::string_view layout = {});

}  // namespace polyhead::app
