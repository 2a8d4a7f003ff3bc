// normal_form() checks the caller's arguments and converts them to the form that backends read (problem/problem.h). Backends check no arguments.
#pragma once

#include <vector>

#include "core/overlap.h"
#include "polyhead/maps.h"
#include "polyhead/sdpa_derivatives.h"
#include "problem/problem.h"

namespace polyhead {

// The returned problem points into `memory`, which holds for example the rules of the mask, and into the caller's tensors.
#pragma GCC visibility push(default)  // exported: the libraries of other components call these
ForwardProblem normal_form(const SdpaForward& tensors, const SdpaOptions& options, const char* operation, ProblemMemory& memory);
BackwardProblem normal_form(const SdpaBackward& tensors, const SdpaOptions& options, ProblemMemory& memory);
JvpProblem normal_form(const SdpaJvp& tensors, const SdpaOptions& options, ProblemMemory& memory);
BackwardBackwardProblem normal_form(const SdpaBackwardBackward& tensors, const SdpaOptions& options, ProblemMemory& memory);
MapsProblem normal_form(const MapsInput& input, const SdpaOptions& options, MapValue value, const char* operation, ProblemMemory& memory);
#pragma GCC visibility pop

// Checks the arguments of an operation on maps as normal_form() does, without computing anything.
void require_options(const MapsInput& input, const SdpaOptions& options, const char* operation);

// Returns sink logits, or their gradient, as a view that can be broadcast to [*,N,T]. If it has one dimension [N], it becomes [N,1].
template <class View>
View rows_of_sink(const View& sink) {
  return sink.rank() == 1 ? sink.unsqueeze(-1) : sink;
}

// Returns whether k and v may have the dtype `k` if q has the dtype `q`.
bool may_store_keys(DType q, DType k);
inline constexpr const char* kKeyStorage = "the dtype of q or, unless that is float64, bfloat16, float16, or int8 with scales";

// Adds the tensors in the options to `inputs`, the tensors that no output may overlap.
[[gnu::visibility("default")]] void add_option_tensors(const SdpaOptions& options, std::vector<Operand>& inputs);  // exported: the libraries of other components call it

}  // namespace polyhead
