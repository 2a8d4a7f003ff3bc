#include "cpu/sdpa/jvp.h"

#include <algorithm>

#include "core/interrupt.h"
#include "core/parallel.h"
#include "cpu/scratch_memory.h"
#include "cpu/sdpa/schedule.h"
#include "cpu/sdpa/sdpa.h"
#include "cpu/select.h"

namespace polyhead::cpu {
namespace {

// Returns the number of rows of a task. With this many rows, packing a key block takes only a few percent of the time of its products, and q, q' and the sums
// of the rows still fit in a second-level cache. The number is smaller if there would otherwise be fewer than two tasks for each thread.
std::int64_t rows_per_task(std::int64_t groups, std::int64_t rows, int threads) {
  constexpr std::int64_t kMost = 768, kLeast = 4 * kRowMultiple;
  const std::int64_t wanted = (2 * threads + groups - 1) / groups, blocks = std::max((rows + kMost - 1) / kMost, std::min(wanted, (rows + kLeast - 1) / kLeast));
  return ((rows + blocks - 1) / blocks + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

}  // namespace

TangentViews tangents_of(const Problem& p, const Tangents& tangents, std::int64_t b, std::int64_t kv, std::int64_t group) {
  const std::int64_t n = kv * group;
  TangentViews views{.q = head_view(tangents.q, b, n), .k = head_view(tangents.k, b, kv), .v = head_view(tangents.v, b, kv), .bias = head_view(tangents.bias, b, n), .sink = head_view(tangents.sink, b, n)};
  if (tangents.relative_bias) views.bias = relative_bias_view(p, tangents.relative_bias, b, n, p.documents.front());
  return views;
}

std::int64_t row_values_size(DType dtype) { return dtype == DType::f64 ? sizeof(RowValues<double>) : sizeof(RowValues<float>); }

void run_jvp(const JvpProblem& p, const ConstTensorView& d_out, void* row_values, int threads) {
  if (p.batch * p.heads * p.queries == 0) return;
  const MaskBlocks mask(p);
  const auto& kernels = current_kernels_of<JvpKernels>();
  const std::int64_t group = p.heads / p.kv_heads, rows = group * p.queries, groups = p.batch * p.kv_heads;
  const std::int64_t per_task = rows_per_task(groups, rows, threads), blocks = (rows + per_task - 1) / per_task;
  const auto place = [&](std::int64_t item, JvpTask& task) {
    const std::int64_t head = item / blocks, b = head / p.kv_heads, kv = head % p.kv_heads, n = kv * group;
    set_heads(p, &mask, p.q, p.k, b, kv, task);
    task.v = head_view(p.v, b, kv), task.out = head_view(p.out, b, n), task.lse = head_view(p.lse, b, n), task.d_out = head_view(d_out, b, n);
    task.tangents = tangents_of(p, p.tangents, b, kv, group);
    task.out_tangent = head_view(p.out_tangent, b, n), task.lse_tangent = head_view(p.lse_tangent, b, n);
    if (row_values != nullptr) task.row_values = static_cast<char*>(row_values) + head * rows * row_values_size(p.dtype);
    task.first_row = item % blocks * per_task, task.rows = std::min(per_task, rows - task.first_row);
  };
  JvpTask first_task;
  set_sizes(p, first_task);
  place(0, first_task);
  const std::int64_t bytes = kernels.jvp_scratch(first_task);
  const double work = static_cast<double>(per_task) * static_cast<double>(p.keys) * 3 * static_cast<double>(p.qk_width + p.v_width);
  parallel_for(groups * blocks, grain_of(work), p.executor, [&](std::int64_t first, std::int64_t last) {
    const ScratchMemory scratch(bytes, p.workspace);
    JvpTask task = first_task;
    for (std::int64_t item = first; item < last; ++item) {
      place(item, task);
      kernels.jvp(task, scratch.get());
      check_interrupt();  // throws if an interrupt made the kernel return early
    }
  });
}

void sdpa_jvp(const JvpProblem& p) {
  if (!p.packed()) return run_jvp(p, {}, nullptr, threads_of(p.executor));
  for_each_document(p, false, [](const Document&, const JvpProblem& part, int threads) { run_jvp(part, {}, nullptr, threads); });
}

}  // namespace polyhead::cpu
