// Runs the backward pass of a backend. From its partial sums, computes the gradients of the sink, the relative bias and the score rule.
#pragma once

#include "core/quiet_arithmetic.h"
#include "polyhead/sdpa.h"
#include "sdpa/backend_rows.h"
#include "sdpa/normal_form.h"
#include "sdpa/relative_bias.h"
#include "sdpa/sink_gradient.h"

namespace polyhead {

// Returns a tensor of zeros to which the backward pass adds the gradients of a score rule. It is [B,N,G], so that different threads may compute different
// sequences. If [B,N,G] needs more than 64 MiB, it is [1,N,G], to which all sequences add.
inline Tensor score_rule_sums(const Problem& problem) {
  const std::int64_t count = problem.heads * problem.score_rule.gradient_count;
  const bool apart = problem.batch > 0 && count > 0 && problem.batch <= (std::int64_t{8} << 20) / count;
  return {DType::f64, {apart ? problem.batch : 1, problem.heads, problem.score_rule.gradient_count}};
}

// Adds the sums of all sequences, in the order of the sequences.
inline void add_up_score_rule_gradient(const Tensor& sums, const TensorView& to) {
  Tensor total(DType::f64, to.shape());
  const std::int64_t count = to.numel();
  for (std::int64_t b = 0; b < sums.shape()[0]; ++b) {
    for (std::int64_t i = 0; i < count; ++i) total.data<double>()[i] += sums.data<double>()[b * count + i];
  }
  copy(total, to);
}

// Runs pass(problem), then adds the partial sums that `pass` has written for the gradients of the sink, the relative bias and the score rule.
template <class P, class Tensors>
void run_backward(P problem, void (*pass)(const P&), const ProblemMemory& memory, const Tensors& tensors, const SdpaOptions& options) {
  const QuietArithmetic quiet;  // no floating-point traps in this thread, during pass(problem) and the sums after it
  Tensor d_sink, d_relative_bias;
  if (tensors.d_sink) problem.d_sink = d_sink = Tensor(DType::f64, problem.sink.shape());
  if (tensors.d_relative_bias) {
    d_relative_bias = Tensor(DType::f64, problem.relative_bias.shape());
    problem.d_relative_bias = d_relative_bias;
  }
  Tensor score_sums;
  if constexpr (requires { tensors.d_score_rule; }) {
    if (tensors.d_score_rule) problem.d_score_rule = score_sums = score_rule_sums(problem);
  }
  pass(problem);
  if constexpr (requires { tensors.d_score_rule; }) {
    if (score_sums) add_up_score_rule_gradient(score_sums, tensors.d_score_rule);
  }
  if (d_relative_bias) add_up_relative_gradient(options.relative_bias, memory.distances, d_relative_bias, tensors.d_relative_bias);
  if (d_sink) add_up_sink_gradient(d_sink, tensors.d_sink);
}

}  // namespace polyhead
