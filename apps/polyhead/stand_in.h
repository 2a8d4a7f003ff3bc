// Tensors that have a shape and nothing else, to ask about sizes.
#pragma once

#include "polyhead/tensor_view.h"

namespace polyhead::app {

// One zero seen as a whole tensor: of any size without memory of its own.
ConstTensorView stand_in(DType dtype, const Shape& shape);

}  // namespace polyhead::app
