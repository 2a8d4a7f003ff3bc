// Writes gradients of parameters, which replace or are added to the contents of their memory.
#pragma once

#include "nn/elementwise.h"
#include "polyhead/nn/module.h"

namespace polyhead::nn {

// Calls f(target) to compute a gradient into `gradient`, unless `gradient` is absent. With Write::add, f writes to a temporary tensor, which is then added, so
// that the sum has the same bits as with add_gradients(). A matrix product that adds to its result might round more often.
template <class F>
void write_gradient(TensorView gradient, Write write, const RunOptions& options, const F& f) {
  if (!gradient || write == Write::replace) return f(gradient);
  Tensor own = uninitialised(gradient.dtype(), gradient.shape(), options.workspace);
  f(own.view());
  add(own, gradient, options.executor);
}

}  // namespace polyhead::nn
