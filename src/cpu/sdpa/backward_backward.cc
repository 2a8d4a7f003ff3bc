#include "cpu/sdpa/backward_pass.h"
#include "cpu/sdpa/jvp.h"
#include "cpu/sdpa/sdpa.h"

namespace polyhead::cpu {
namespace {

// The pass of sdpa_backward_backward() for the template DocumentPass; it has the same members as FirstBackward. The constructor runs the jvp, which writes
// d_d_out, and the RowValues of all rows as [B,K,N/K * T]. DocumentPass then runs the cells of the schedule, which read these RowValues.
class SecondBackward {
 public:
  using Problem = BackwardBackwardProblem;
  using Task = BackwardBackwardTask;

  SecondBackward(const BackwardBackwardProblem& p, int threads) : values_(p.batch * p.heads * p.queries * row_values_size(p.dtype), p.workspace) {
    JvpProblem jvp;
    static_cast<polyhead::Problem&>(jvp) = p;
    jvp.q = p.q, jvp.k = p.k, jvp.v = p.v, jvp.out = p.out, jvp.lse = p.lse, jvp.tangents = p.tangents, jvp.out_tangent = p.d_d_out;
    run_jvp(jvp, p.d_out, values_.get(), threads);
  }
  void place(const BackwardBackwardProblem& p, const MaskBlocks& blocks, std::int64_t b, std::int64_t kv, BackwardBackwardTask& task) const {
    FirstBackward::place(p, blocks, b, kv, task);
    task.tangents = tangents_of(p, p.tangents, b, kv, task.heads);
    task.row_values = static_cast<const char*>(values_.get()) + (b * p.kv_heads + kv) * task.heads * p.queries * row_values_size(p.dtype);
  }
  static bool adds_often(const BackwardBackwardProblem& p) { return static_cast<bool>(p.tangents.k); }  // with a tangent k', both d_x k and d_x' k' are added to d_q
  static std::int64_t scratch_bytes(const BackwardBackwardTask& task) { return current_kernels_of<BackwardBackwardKernels>().backward_backward_scratch(task); }
  static void run(const BackwardBackwardTask& task, void* scratch) { current_kernels_of<BackwardBackwardKernels>().backward_backward(task, scratch); }

 private:
  ScratchMemory values_;
};

}  // namespace

void sdpa_backward_backward(const BackwardBackwardProblem& p) { run_backward<SecondBackward>(p); }

}  // namespace polyhead::cpu
