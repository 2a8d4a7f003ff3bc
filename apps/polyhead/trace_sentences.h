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

using ProjectionNames = std::map<std::string, std::string>;  // what the source of a layer calls q, k, v, output and gate: "q" -> "W_q"

struct TraceStep : nn::TraceStep {
  std::string step;     // "scores"
  std::string where;    // the input, module or expression that gives the value: "W_q(query)"
  std::string meaning;  // one sentence, with the sizes at hand
  std::vector<std::pair<std::string, Tensor>> parameters = {};  // of its projection: "W_q.weight"
  std::vector<SourceStep> source = {};                          // how the layer's source computes it, if in more steps
};

// layout: of the source's parameters, such as "d2l"; "" gives no steps of a source.
std::vector<TraceStep> trace_sentences(const nn::MultiHeadAttention& layer, const nn::AttentionInput& input, const nn::AttentionOptions& options,
                                       const ProjectionNames& names, std::string_view layout = {});

}  // namespace polyhead::app
