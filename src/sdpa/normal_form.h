// Checks the caller's arguments, here and only here, and converts them to the normal form that backends read.
#pragma once

#include <vector>

#include "core/overlap.h"
#include "polyhead/maps.h"
#include "polyhead/sdpa_derivatives.h"
#include "problem/problem.h"

namespace polyhead {

// `memory` owns what the problem points to, such as the rules of the mask; the tensors are the caller's.
#pragma GCC visibility push(default)  // components call these
ForwardProblem normal_form(const SdpaForward& tensors, const SdpaOptions& options, const char* operation, ProblemMemory& memory);
BackwardProblem normal_form(const SdpaBackward& tensors, const SdpaOptions& options, ProblemMemory& memory);
JvpProblem normal_form(const SdpaJvp& tensors, const SdpaOptions& options, ProblemMemory& memory);
BackwardBackwardProblem normal_form(const SdpaBackwardBackward& tensors, const SdpaOptions& options, ProblemMemory& memory);
MapsProblem normal_form(const MapsInput& input, const SdpaOptions& options, MapValue value, const char* operation, ProblemMemory& memory);
#pragma GCC visibility pop

// Makes the checks of normal_form() for maps, without computing anything.
void require_options(const MapsInput& input, const SdpaOptions& options, const char* operation);

// Sink logits, or their gradient, as a view that broadcasts to [*,N,T]: with one dimension they are [N].
template <class View>
View rows_of_sink(const View& sink) {
  return sink.rank() == 1 ? sink.unsqueeze(-1) : sink;
}

// Whether k and v may have the dtype `k` if q has the dtype `q`.
bool may_store_keys(DType q, DType k);
inline constexpr const char* kKeyStorage = "the dtype of q or, unless that is float64, bfloat16, float16, or int8 with scales";

// Adds the tensors in the options, which no output may overlap.
[[gnu::visibility("default")]] void add_option_tensors(const SdpaOptions& options, std::vector<Operand>& inputs);  // components call it

}  // namespace polyhead
