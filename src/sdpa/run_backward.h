// A backward pass with the gradients of sinks and of a relative bias.
#pragma once

#include "core/quiet_arithmetic.h"
#include "polyhead/sdpa.h"
#include "sdpa/backend_rows.h"
#include "sdpa/normal_form.h"
#include "sdpa/relative_bias.h"
#include "sdpa/sink_gradient.h"

namespace polyhead {

// Runs pass(problem), then adds up its per-row gradients of sinks and its gradients of relative biases.
template <class P, class Tensors>
void run_backward(P problem, void (*pass)(const P&), const ProblemMemory& memory, const Tensors& tensors, const SdpaOptions& options) {
  const QuietArithmetic quiet;  // sums and roundings that are not in a kernel
  Tensor d_sink, d_relative_bias;
  if (tensors.d_sink) problem.d_sink = d_sink = Tensor(DType::f64, problem.sink.shape());
  if (tensors.d_relative_bias) {
    d_relative_bias = Tensor(DType::f64, problem.relative_bias.shape());
    problem.d_relative_bias = d_relative_bias;
  }
  pass(problem);
  if (d_relative_bias) add_up_relative_gradient(options.relative_bias, memory.distances, d_relative_bias, tensors.d_relative_bias);
  if (d_sink) add_up_sink_gradient(d_sink, tensors.d_sink);
}

}  // namespace polyhead
