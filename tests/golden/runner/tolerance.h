// Computes how far each element of a result may lie from the expected float64 value.
#pragma once

#include <map>

#include "golden/runner/operation.h"

namespace polyhead::golden {

// The largest error of plain PyTorch in float32, by case and tensor (make_float32_errors.py writes these errors).
using Float32Errors = std::map<std::string, std::map<std::string, double>>;
Float32Errors read_float32_errors(const std::filesystem::path& path);

using Bounds = std::map<std::string, std::vector<double>>;

// Returns 1e-12 times the magnitude of each tensor.
Bounds float64_bounds(const Case& which);

// Returns the bounds in float32. For attention weights, lse and the output of sdpa, the bound follows from the formula. Gradients and outputs of layers may
// have twice the recorded error of PyTorch or, if none is recorded, a multiple of the error that rounding the inputs causes.
Bounds float32_bounds(const Case& which, const Float32Errors& torch);

// Returns the number that errors of a tensor are divided by: the tensor's largest magnitude. A gradient that is zero in exact arithmetic consists of rounding
// errors, so the largest magnitude of all gradients is used instead. (An example is the gradient of a bias that is constant along the keys and shifts whole
// rows.)
double magnitude(const Case& which, const std::string& name);

}  // namespace polyhead::golden
