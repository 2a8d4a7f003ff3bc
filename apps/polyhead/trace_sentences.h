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
  std::string where;    // the input, module or expression whose value the step shows: "W_q(query)"
  std::string meaning;  // what the step does: one sentence, with the sizes of this call
  std::vector<std::pair<std::string, Tensor>> parameters = {};  // the parameters that the step reads, by name: those of a projection ("W_q.weight"), or bias_k or bias_v
  std::vector<SourceStep> source = {};                          // the steps in which the layer's source code computes the value, if there are several
};

// The steps of a call, with sentences. layout: name of the layout whose source code is shown beside the steps, such as "d2l"; "": none.
std::vector<TraceStep> trace_sentences(const nn::MultiHeadAttention& layer, const nn::AttentionInput& input, const nn::AttentionOptions& options,
                                       const ProjectionNames& names, std::string_view layout = {});

}  // namespace polyhead::app
