// Computes all results that the file lists as expected.
#pragma once

#include "golden/runner/case.h"
#include "polyhead/sdpa.h"

namespace polyhead::golden {

struct Setting {
  const Backend* backend = nullptr;
};

// Error when the case names an operation, a rule or a tensor that the runner does not know.
Tensors compute(const Case& which, Tensors inputs, const Setting& setting);

// The inputs with float64 tensors converted to `dtype`. Narrower tensors are part of the case and stay unchanged.
Tensors inputs_as(const Case& which, DType dtype);

// The dtype of the query, which that of the results follows.
DType dtype_of(const Tensors& inputs);

Tensors compute_sdpa(Reader& in, const Setting& setting);
Tensors compute_second_derivatives(Reader& in, const Setting& setting);
Tensors compute_layer(Reader& in, const Setting& setting);

EmptyRows read_empty_rows(Reader& in);
// One or two dimensions from nested lists of integers: key lengths, offsets.
Tensor integer_tensor(const nlohmann::json& list);

}  // namespace polyhead::golden
