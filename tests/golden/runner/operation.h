// Computes the results of a case, to compare them with the expected results in the file.
#pragma once

#include "golden/runner/case.h"
#include "polyhead/sdpa.h"

namespace polyhead::golden {

struct Setting {
  const Backend* backend = nullptr;
};

// Computes the results of a case. Error if the case has an operation, an option or a tensor that the runner does not know.
Tensors compute(const Case& which, Tensors inputs, const Setting& setting);

// Returns the inputs, with float64 tensors converted to `dtype`. Tensors of a narrower dtype are part of what the case tests and are not converted.
Tensors inputs_as(const Case& which, DType dtype);

// Returns the dtype of the query. The results have the same dtype.
DType dtype_of(const Tensors& inputs);

Tensors compute_sdpa(Reader& in, const Setting& setting);
Tensors compute_second_derivatives(Reader& in, const Setting& setting);
Tensors compute_layer(Reader& in, const Setting& setting);

EmptyRows read_empty_rows(Reader& in);
// Converts a list of integers, such as key lengths or offsets, to a tensor of one dimension, and a list of such lists to a tensor of two.
Tensor integer_tensor(const nlohmann::json& list);

}  // namespace polyhead::golden
