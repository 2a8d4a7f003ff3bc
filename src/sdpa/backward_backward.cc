#include "polyhead/sdpa_derivatives.h"
#include "sdpa/run_backward.h"

namespace polyhead {

void sdpa_backward_backward(const SdpaBackwardBackward& tensors, const SdpaOptions& options) {
  static constexpr auto kPasses = of_each_backend([]<class Row> { return Pass<BackwardBackwardProblem>{Row::declines, Row::backward_backward}; });
  ProblemMemory memory;
  const BackwardBackwardProblem problem = normal_form(tensors, options, memory);
  run_backward(problem, choose_pass(problem, Operation::backward_backward, options.backend, &Backend::backward_backward, kPasses), memory, tensors, options);
}

}  // namespace polyhead
