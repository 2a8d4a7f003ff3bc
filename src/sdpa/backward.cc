#include "polyhead/sdpa.h"
#include "sdpa/rule_blocks.h"
#include "sdpa/run_backward.h"

namespace polyhead {

void sdpa_backward(const SdpaBackward& tensors, const SdpaOptions& options) {
  static constexpr auto kPasses = of_each_backend([]<class Row> { return Pass<BackwardProblem>{Row::declines, Row::backward}; });
  ProblemMemory memory;
  const BackwardProblem problem = normal_form(tensors, options, memory);
  skip_blocks_of_rule(problem, {problem.q, problem.k, problem.v, problem.out, problem.d_out}, memory);
  run_backward(problem, choose_pass(problem, Operation::backward, options.backend, &Backend::backward, kPasses), memory, tensors, options);
}

}  // namespace polyhead
