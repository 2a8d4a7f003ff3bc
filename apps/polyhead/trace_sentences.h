// The steps of a layer's trace in words.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "polyhead/nn/trace.h"

namespace polyhead::app {

using ProjectionNames = std::map<std::string, std::string>;  // what the source of a layer calls q, k, v, output and gate: "q" -> "W_q"

struct TraceStep : nn::TraceStep {
  std::string step;     // "scores"
  std::string where;    // the input, module or expression that gives the value: "W_q(query)"
  std::string meaning;  // one sentence, with the sizes at hand
};

std::vector<TraceStep> trace_sentences(const nn::MultiHeadAttention& layer, const nn::AttentionInput& input, const nn::AttentionOptions& options,
                                       const ProjectionNames& names);

}  // namespace polyhead::app
