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

// The names that the projections have in the layer's source code. The keys are q, k, v, output and gate; for example "q" -> "W_q".
using ProjectionNames = std::map<std::string, std::string>;

struct TraceStep : nn::TraceStep {
  std::string step;     // "scores"
  std::string where;    // where the step's value comes from in the source code: an input, a module or an expression, such as "W_q(query)"
  std::string meaning;  // one sentence that says what the step does, with the sizes of this call
  // The parameters that the step reads, with their names: a projection's ("W_q.weight"), bias_k or bias_v.
  std::vector<std::pair<std::string, Tensor>> parameters = {};
  // If the layer's source code needs several steps for this step: these steps.
  std::vector<SourceStep> source = {};
};

// Traces a call and returns its steps with sentences. layout: the source code that is shown beside the steps, such as "d2l"; "" shows none.
std::vector<TraceStep> trace_sentences(const nn::MultiHeadAttention& layer, const nn::AttentionInput& input, const nn::AttentionOptions& options,
                                       const ProjectionNames& names, std::string_view layout = {});

}  // namespace polyhead::app
