// Computes the gradient of sink logits in the shape that the caller gave.
#pragma once

#include "polyhead/tensor_view.h"

namespace polyhead {

// d_sink = the sum of the rows' gradients, float64 [*,N,T,1], over the dimensions along which the sink was broadcast, in the order of the rows.
[[gnu::visibility("default")]] void add_up_sink_gradient(ConstTensorView rows, TensorView d_sink);  // components call it

}  // namespace polyhead
