// From what the caller wrote to what backends see: every check of the public contract is made here, once.
#pragma once

#include <vector>

#include "core/overlap.h"
#include "polyhead/maps.h"
#include "polyhead/sdpa.h"
#include "problem/problem.h"

namespace polyhead {

ForwardProblem normal_form(const SdpaForward& tensors, const SdpaOptions& options, const char* operation);
BackwardProblem normal_form(const SdpaBackward& tensors, const SdpaOptions& options);
MapsProblem normal_form(const MapsInput& input, const SdpaOptions& options, MapValue value, const char* operation);

// The tensors that the options give, which no output may overlap.
std::vector<Operand> option_tensors(const SdpaOptions& options);

}  // namespace polyhead
