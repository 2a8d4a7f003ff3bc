// Computes the gradient of sink logits in the shape that the caller gave.
#pragma once

#include "polyhead/tensor_view.h"

namespace polyhead {

// Sets d_sink to the sum of `rows` (float64 [*,N,T,1], the gradient of each row's sink logit) over the dimensions along which the sink was broadcast, in the
// order of the rows.
[[gnu::visibility("default")]] void add_up_sink_gradient(ConstTensorView rows, TensorView d_sink);  // exported: the libraries of other components call it

}  // namespace polyhead
