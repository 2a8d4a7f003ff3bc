// Writes the gradient of a parameter: the gradient replaces what the memory holds, or is added to it.
#pragma once

#include "nn/elementwise.h"
#include "polyhead/nn/module.h"

namespace polyhead::nn {

// Calls f(target) to compute the gradient of a parameter, unless `gradient` is absent. With Write::replace, f writes to `gradient` itself. With Write::add, f
// writes to a temporary tensor that is then added to `gradient`, so that the sum has the same bits as with add_gradients(). A matrix product that adds to its
// result might round more often.
template <class F>
void write_gradient(TensorView gradient, Write write, const RunOptions& options, const F& f) {
  if (!gradient || write == Write::replace) return f(gradient);
  Tensor own = uninitialised(gradient.dtype(), gradient.shape(), options.workspace);
  f(own.view());
  add(own, gradient, options.executor);
}

}  // namespace polyhead::nn
