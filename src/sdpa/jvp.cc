#include "polyhead/sdpa_derivatives.h"
#include "sdpa/backend_rows.h"
#include "sdpa/normal_form.h"

namespace polyhead {

void sdpa_jvp(const SdpaJvp& tensors, const SdpaOptions& options) {
  static constexpr auto kPasses = of_each_backend([]<class Row> { return Pass<JvpProblem>{Row::declines, Row::jvp}; });
  ProblemMemory memory;
  const JvpProblem problem = normal_form(tensors, options, memory);
  const auto pass = choose_pass(problem, Operation::jvp, options.backend, &Backend::jvp, kPasses);
  if (problem.queries > 0) pass(problem);
}

}  // namespace polyhead
