// Gradients of parameters, which replace what is in their memory or are added to it.
#pragma once

#include "nn/elementwise.h"
#include "polyhead/nn/module.h"

namespace polyhead::nn {

// f(target) computes a gradient, for which `gradient` is the memory; absent: not wanted. With Write::add f writes to a tensor of the
// workspace, so that the sum has the bits of add_gradients: a product that adds to its result may round more often.
template <class F>
void write_gradient(TensorView gradient, Write write, const RunOptions& options, const F& f) {
  if (!gradient || write == Write::replace) return f(gradient);
  Tensor own = uninitialised(gradient.dtype(), gradient.shape(), options.workspace);
  f(own.view());
  add(own, gradient, options.executor);
}

}  // namespace polyhead::nn
