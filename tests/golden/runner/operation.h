// Computes all results that the file lists as expected.
#pragma once

#include "golden/runner/case.h"
#include "polyhead/sdpa.h"

namespace polyhead::golden {

struct Setting {
  const Backend* backend = nullptr;
};

// Computes the results of a case. Error if it names an operation, a rule or a tensor that the runner does not know.
Tensors compute(const Case& which, Tensors inputs, const Setting& setting);

// Returns the inputs, with float64 tensors converted to `dtype`. Narrower tensors belong to the case and stay as they are.
Tensors inputs_as(const Case& which, DType dtype);

// Returns the dtype of the query, which the results have too.
DType dtype_of(const Tensors& inputs);

Tensors compute_sdpa(Reader& in, const Setting& setting);
Tensors compute_second_derivatives(Reader& in, const Setting& setting);
Tensors compute_layer(Reader& in, const Setting& setting);

EmptyRows read_empty_rows(Reader& in);
// Returns a tensor of one or two dimensions from a list, or a list of lists, of integers: key lengths, offsets.
Tensor integer_tensor(const nlohmann::json& list);

}  // namespace polyhead::golden
