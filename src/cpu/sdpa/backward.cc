#include <algorithm>
#include <optional>

#include "core/dispatch.h"
#include "core/parallel.h"
#include "cpu/scratch_memory.h"
#include "cpu/sdpa/bias_gradient.h"
#include "cpu/sdpa/group.h"
#include "cpu/sdpa/sdpa.h"
#include "cpu/select.h"

namespace polyhead::cpu {
namespace {

// Work items of the threads. A task is one key/value head of one sequence, or, if a sequence has few heads, one key split of it. Each split
// has its own sums of d_q, which are added in the order of the splits. The number of splits depends on the sizes of one sequence only, so
// results depend neither on the threads nor on other sequences. Tasks that add into the same elements of d_bias form one item, which one
// thread computes in order.
struct Items {
  static constexpr std::int64_t kWantedTasks = 8, kLeastKeys = 512;
  std::int64_t splits = 1, keys_per_split = 0;
  std::int64_t sequences, heads, splits_apart;  // numbers of separate items; 1: one item has them all

  Items(const BackwardProblem& p, const BiasGradient* bias) {
    sequences = bias != nullptr && bias->shared_by_sequences() ? 1 : p.batch;
    heads = bias != nullptr && bias->shared_by_heads() ? 1 : p.kv_heads;
    if (bias == nullptr || !bias->shared_by_keys()) {
      splits = std::clamp<std::int64_t>(p.keys / kLeastKeys, 1, (kWantedTasks + heads - 1) / std::max<std::int64_t>(1, heads));
    }
    keys_per_split = std::max<std::int64_t>(
        kBackwardSplitStep, ((p.keys + splits - 1) / splits + kBackwardSplitStep - 1) / kBackwardSplitStep * kBackwardSplitStep);
    splits = std::max<std::int64_t>(1, (p.keys + keys_per_split - 1) / keys_per_split);
    splits_apart = sequences * heads < kWantedTasks ? splits : 1;
  }
  std::int64_t count() const { return sequences * heads * splits_apart; }
};

// For rows first to last - 1 of a key/value head: adds the sums of d_q [split, group rows, stride] in the order of the splits and stores
// d_q.
template <class T>
void add_splits_of(const BackwardProblem& p, std::int64_t splits, std::int64_t head, const T* sums, std::int64_t first, std::int64_t last) {
  const std::int64_t group = p.heads / p.kv_heads, stride = backward_sums_stride(p.qk_width), split_size = group * p.queries * stride;
  for (std::int64_t r = first; r < last; ++r) {
    const T* from = sums + r * stride;
    dispatch_floating(p.dtype, [&](auto type) {
      using Storage = typename decltype(type)::type;
      const auto to = head_slice<Storage>(p.d_q, head / p.kv_heads, head % p.kv_heads * group + r / p.queries);
      for (std::int64_t d = 0; d < p.qk_width; ++d) {
        T sum = 0;
        for (std::int64_t split = 0; split < splits; ++split) sum += from[split * split_size + d];
        to(r % p.queries, d) = store<Storage>(sum);
      }
    });
  }
}

void add_splits(const BackwardProblem& p, std::int64_t splits, std::int64_t head, const void* sums, std::int64_t first, std::int64_t last) {
  p.dtype == DType::f64 ? add_splits_of(p, splits, head, static_cast<const double*>(sums), first, last)
                        : add_splits_of(p, splits, head, static_cast<const float*>(sums), first, last);
}

void move_to(const BackwardProblem& p, const MaskBlocks& blocks, const BiasGradient* bias, std::int64_t b, std::int64_t kv,
             BackwardTask& task) {
  set_heads(p, &blocks, p.q, p.k, b, kv, task);
  const std::int64_t n = kv * task.heads;
  task.v = plane_of(p.v, b, kv);
  task.out = plane_of(p.out, b, n), task.lse = plane_of(p.lse, b, n), task.d_out = plane_of(p.d_out, b, n);
  task.d_q = plane_of(p.d_q, b, n), task.d_k = plane_of(p.d_k, b, kv), task.d_v = plane_of(p.d_v, b, kv);
  task.d_sink = plane_of(p.d_sink, b, n);
  if (bias != nullptr) task.d_bias = bias->plane(b, n, p.documents.front());
}

void backward_document(const BackwardProblem& p, const BiasGradient* bias) {
  if (p.batch * p.heads * p.queries * p.keys == 0) {  // an empty tensor may have more heads than a loop can visit
    for (const TensorView& gradient : {p.d_q, p.d_k, p.d_v}) {
      if (gradient) fill(gradient, 0);
    }
    return;
  }
  const SdpaKernels& kernels = current_kernels().sdpa;
  const Items items(p, bias);
  const MaskBlocks mask(p);
  const std::int64_t group_rows = p.heads / p.kv_heads * p.queries, stride = backward_sums_stride(p.qk_width);
  const std::int64_t size = p.dtype == DType::f64 ? 8 : 4, sums_bytes = group_rows * stride * size;
  BackwardTask first_task;
  set_sizes(p, first_task);
  move_to(p, mask, bias, 0, 0, first_task);
  first_task.store_d_q = items.splits == 1;
  if (bias != nullptr) first_task.write_d_bias = bias->written(), first_task.stream_d_bias = bias->streamed();
  // Sums of d_q, if d_q is wanted. `shared` holds those of all items if splits run on different threads; otherwise each thread's `own`
  // holds those of one head.
  const bool together = items.splits_apart == 1;
  std::optional<ScratchMemory> shared;
  if (!together && p.d_q) shared.emplace(std::max<std::int64_t>(1, p.batch * p.kv_heads * items.splits * sums_bytes), p.workspace);

  const double work = 2.5 * static_cast<double>(p.batch * p.heads * p.queries) * static_cast<double>(p.keys * (p.qk_width + p.v_width)) /
                      static_cast<double>(std::max<std::int64_t>(1, items.count()));
  parallel_for(items.count(), grain_of(work), p.executor, [&](std::int64_t first, std::int64_t last) {
    const ScratchMemory scratch(kernels.backward_scratch(first_task), p.workspace);
    std::optional<ScratchMemory> own;
    if (together && p.d_q) own.emplace(std::max<std::int64_t>(1, items.splits * sums_bytes), p.workspace);
    BackwardTask task = first_task;
    const auto run = [&](std::int64_t b, std::int64_t kv, std::int64_t split) {
      task.first_key = split * items.keys_per_split, task.last_key = std::min(p.keys, task.first_key + items.keys_per_split);
      if (shared) task.d_q_sums = static_cast<char*>(shared->get()) + ((b * p.kv_heads + kv) * items.splits + split) * sums_bytes;
      if (own) task.d_q_sums = static_cast<char*>(own->get()) + split * sums_bytes;
      kernels.backward(task, scratch.get());
    };
    for (std::int64_t item = first; item < last; ++item) {
      const std::int64_t first_split = item % items.splits_apart, kv = item / items.splits_apart % items.heads;
      const std::int64_t b = item / items.splits_apart / items.heads;
      // An item with several sequences or heads loops over heads outermost, so that the d_bias of a head stays in the cache.
      for (std::int64_t h = kv; h < p.kv_heads; h += items.heads) {
        for (std::int64_t s = b; s < p.batch; s += items.sequences) {
          move_to(p, mask, bias, s, h, task);
          for (std::int64_t split = first_split; split < items.splits; split += items.splits_apart) run(s, h, split);
          if (own && items.splits > 1) add_splits(p, items.splits, s * p.kv_heads + h, own->get(), 0, group_rows);
        }
      }
    }
  });
  if (!shared) return;
  const std::int64_t row_grain = std::max<std::int64_t>(1, 20'000 / std::max<std::int64_t>(1, stride * items.splits));
  parallel_for(p.batch * p.kv_heads * group_rows, row_grain, p.executor, [&](std::int64_t first, std::int64_t last) {
    while (first < last) {
      const std::int64_t head = first / group_rows, begin = head * group_rows, end = std::min(last, begin + group_rows);
      add_splits(p, items.splits, head, static_cast<const char*>(shared->get()) + head * items.splits * sums_bytes, first - begin, end - begin);
      first = end;
    }
  });
}

}  // namespace

void sdpa_backward(const BackwardProblem& p) {
  std::optional<BiasGradient> bias;
  if (p.d_bias) bias.emplace(p);
  const BiasGradient* const d_bias = bias ? &*bias : nullptr;
  if (!p.packed()) {
    backward_document(p, d_bias);
  } else {
    const bool written = d_bias != nullptr && d_bias->written();
    for_each_document(p, d_bias != nullptr && !written, [&](const Document& document, const BackwardProblem& part) {
      if (written) fill_other_keys(p.d_bias.slice(-2, document.queries.first, document.queries.last), document.keys, 0);
      backward_document(part, d_bias);
    });
  }
  if (bias) bias->store();
}

}  // namespace polyhead::cpu
