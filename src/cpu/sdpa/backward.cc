#include "cpu/sdpa/backward_pass.h"
#include "cpu/sdpa/sdpa.h"

namespace polyhead::cpu {

void sdpa_backward(const BackwardProblem& p) { run_backward<FirstBackward>(p); }

}  // namespace polyhead::cpu
