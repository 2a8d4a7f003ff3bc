// Shapes and dtypes of the results of attention.
#pragma once

#include <algorithm>

#include "polyhead/tensor_view.h"

namespace polyhead::python {

inline Shape with_last(ConstTensorView like, std::int64_t last) {
  Shape shape = like.shape();
  if (!shape.empty()) shape[-1] = last;
  return shape;
}

inline Shape without_last(ConstTensorView like) { return like.shape().first(std::max(like.rank() - 1, 0)); }

inline DType lse_dtype(DType dtype) { return is_floating(dtype) ? accumulation_dtype(dtype) : DType::f32; }

// The shape and dtype of sdpa's result `out`. A v without dimensions gives a last extent of 0; sdpa_forward() then refuses the inputs.
inline Shape out_shape(ConstTensorView q, ConstTensorView v) { return with_last(q, v.rank() > 0 ? v.extent(-1) : 0); }

}  // namespace polyhead::python
