#include <algorithm>

#include "core/parallel.h"
#include "core/text.h"
#include "cpu/scratch_memory.h"
#include "cpu/sdpa/group.h"
#include "cpu/sdpa/sdpa.h"
#include "cpu/select.h"

namespace polyhead::cpu {
namespace {

// Rows that one task computes. Each task packs the keys and values that it meets: a few cycles per element, shared by its rows, are 3 % of
// the time. A row's bits do not depend on the block that it is in.
struct Blocks {
  static constexpr std::int64_t kWantedTasks = 8;
  std::int64_t rows;       // of a head, or of whole heads
  std::int64_t per_group;  // tasks of a key/value head

  explicit Blocks(const Problem& p) {
    constexpr std::int64_t kStrip = 12;
    const std::int64_t widest = std::max(p.qk_width, p.v_width) * (p.dtype == DType::f64 ? 2 : 1);
    const std::int64_t group = p.heads / p.kv_heads;
    std::int64_t most = widest <= 64 ? 768 : widest <= 128 ? 384 : 192;
    while (most > 96 && p.batch * p.heads * p.queries < kWantedTasks * most) most /= 2;  // few heads: something for every thread
    if (p.queries * 2 <= most) {  // whole heads, so that the queries of a group share what is packed
      const std::int64_t heads = std::min(group, most / p.queries);
      rows = heads * p.queries;
      per_group = (group + heads - 1) / heads;
      whole_heads_ = true;
    } else {
      const std::int64_t blocks = (p.queries + most - 1) / most, share = (p.queries + blocks - 1) / blocks;
      rows = std::min(p.queries, (share + kStrip - 1) / kStrip * kStrip);
      per_head_ = (p.queries + rows - 1) / rows;
      per_group = group * per_head_;
    }
  }

  // First row and number of rows of task i of a group.
  void place(std::int64_t i, const HeadGroup& group, ForwardTask& task) const {
    if (whole_heads_) {
      task.first_row = i * rows;
      task.rows = std::min(rows, group.heads * group.queries - task.first_row);
    } else {
      const std::int64_t t = i % per_head_ * rows;
      task.first_row = i / per_head_ * group.queries + t;
      task.rows = std::min(rows, group.queries - t);
    }
  }

 private:
  std::int64_t per_head_ = 1;
  bool whole_heads_ = false;
};

ForwardTask sizes_of(const Problem& p, std::int64_t rows) {
  ForwardTask task;
  task.dtype = p.dtype;
  task.queries = p.queries, task.keys = p.keys, task.qk_width = p.qk_width, task.v_width = p.v_width;
  task.rows = rows;
  return task;
}

}  // namespace

void sdpa_forward(const ForwardProblem& p) {
  if (p.batch * p.heads * p.queries == 0) return;
  const SdpaKernels& kernels = current_kernels().sdpa;
  const Blocks blocks(p);
  const std::int64_t bytes = kernels.forward_scratch(sizes_of(p, blocks.rows));
  // A thread's wake-up is worth 50 us: 10^6 multiplications.
  const double work = static_cast<double>(blocks.rows * p.keys) * static_cast<double>(p.qk_width + p.v_width);
  const auto grain = static_cast<std::int64_t>(std::clamp(1e6 / std::max(work, 1.0), 1.0, 1e6));
  parallel_for(p.batch * p.kv_heads * blocks.per_group, grain, p.executor, [&](std::int64_t first, std::int64_t last) {
    const ScratchMemory scratch(bytes);
    std::vector<RowKind> kinds;
    ForwardTask task;
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t block = i % blocks.per_group, b = i / blocks.per_group / p.kv_heads, kv = i / blocks.per_group % p.kv_heads;
      if (i == first || block == 0) {
        static_cast<HeadGroup&>(task) = head_group(p, p.q, p.k, p.v, b, kv, kinds);
        task.out = plane_of(p.out, b, kv * task.heads);
        task.lse = plane_of(p.lse, b, kv * task.heads);
      }
      blocks.place(block, task, task);
      kernels.forward(task, scratch.get());
    }
  });
}

std::string facts_of_forward(const ForwardProblem& p) {
  if (p.batch * p.heads * p.queries == 0) return {};
  const KernelSet& set = current_kernels();
  const Blocks blocks(p);
  return cat("kernel: ", set.name, ", blocks of ", blocks.rows, " queries, ", p.batch * p.kv_heads * blocks.per_group, " of them\n",
             "scratch: ", set.sdpa.forward_scratch(sizes_of(p, blocks.rows)), " bytes per thread\n");
}

}  // namespace polyhead::cpu
