// How far a result may lie from the expected float64 value, element by element.
#pragma once

#include <map>

#include "golden/runner/operation.h"

namespace polyhead::golden {

// The largest error of plain PyTorch in float32: case -> tensor -> error (make_float32_errors.py).
using Float32Errors = std::map<std::string, std::map<std::string, double>>;
Float32Errors read_float32_errors(const std::filesystem::path& path);

using Bounds = std::map<std::string, std::vector<double>>;

// 1e-12 of each tensor's largest magnitude.
Bounds float64_bounds(const Case& which);

// Attention weights, lse and the output of sdpa: a bound from the formula. Gradients and outputs of layers: twice PyTorch's error where that is
// known, else a multiple of the error from rounding the inputs.
Bounds float32_bounds(const Case& which, const Float32Errors& torch);

// The magnitude that errors of a tensor are measured by: its own largest, but for a gradient that is zero in exact arithmetic (a bias which
// is constant along the keys shifts whole rows of scores) the largest of all gradients, because its own is rounding noise.
double magnitude(const Case& which, const std::string& name);

}  // namespace polyhead::golden
