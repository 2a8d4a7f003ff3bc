// Checks the caller's arguments, here and only here, and converts them to the normal form that backends read.
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

// The tensors in the options, which no output may overlap.
std::vector<Operand> option_tensors(const SdpaOptions& options);

}  // namespace polyhead
