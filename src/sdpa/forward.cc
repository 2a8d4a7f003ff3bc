#include "polyhead/sdpa.h"
#include "sdpa/backend_rows.h"
#include "sdpa/normal_form.h"
#include "sdpa/rule_blocks.h"

namespace polyhead {

void sdpa_forward(const SdpaForward& tensors, const SdpaOptions& options) {
  static constexpr auto kPasses = of_each_backend([]<class Row> { return Pass<ForwardProblem>{Row::declines, Row::forward}; });
  ProblemMemory memory;
  const ForwardProblem problem = normal_form(tensors, options, "sdpa_forward", memory);
  skip_blocks_of_rule(problem, {problem.v}, memory);
  const auto pass = choose_pass(problem, Operation::forward, options.backend, &Backend::forward, kPasses);
  if (problem.queries > 0) pass(problem);  // if T = 0, empty tensors may have 2^62 heads, and a loop over these heads would not end
}

}  // namespace polyhead
