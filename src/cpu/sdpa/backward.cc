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

// How the work is cut. A task is one key/value head of one sequence, or a part of its keys where a sequence has few heads: then each part has
// its own sums of d_q, which are added in the order of the parts. The parts follow from the sizes of one sequence only, so that results depend
// neither on the threads nor on the other sequences.
struct Cut {
  static constexpr std::int64_t kWantedTasks = 8, kLeastKeys = 512;
  std::int64_t parts = 1, keys_per_part = 0;
  // Tasks that add into the same elements of d_bias form a unit: one thread, one order.
  std::int64_t sequences, heads, part_units;  // units are the product of these

  Cut(const BackwardProblem& p, const BiasGradient* bias) {
    sequences = bias != nullptr && bias->shared_by_sequences() ? 1 : p.batch;
    heads = bias != nullptr && bias->shared_by_heads() ? 1 : p.kv_heads;
    if (bias == nullptr || !bias->shared_by_keys()) {
      parts = std::clamp<std::int64_t>(p.keys / kLeastKeys, 1, (kWantedTasks + heads - 1) / std::max<std::int64_t>(1, heads));
    }
    constexpr std::int64_t kBlock = 256;
    keys_per_part = std::max<std::int64_t>(kBlock, ((p.keys + parts - 1) / parts + kBlock - 1) / kBlock * kBlock);
    parts = std::max<std::int64_t>(1, (p.keys + keys_per_part - 1) / keys_per_part);
    part_units = sequences * heads < kWantedTasks ? parts : 1;
  }
  std::int64_t units() const { return sequences * heads * part_units; }
};

// d_q of rows [first, last) of a key/value head's queries: its parts, [part, group rows, stride], added in order.
template <class T>
void add_parts_of(const BackwardProblem& p, const Cut& cut, std::int64_t head, const T* sums, std::int64_t first, std::int64_t last) {
  const std::int64_t group = p.heads / p.kv_heads, stride = backward_sums_stride(p.qk_width), part_size = group * p.queries * stride;
  std::vector<T> row(static_cast<std::size_t>(p.qk_width));
  for (std::int64_t r = first; r < last; ++r) {
    const T* from = sums + r * stride;
    for (std::int64_t d = 0; d < p.qk_width; ++d) {
      T sum = 0;
      for (std::int64_t part = 0; part < cut.parts; ++part) sum += from[part * part_size + d];
      row[static_cast<std::size_t>(d)] = sum;
    }
    dispatch_floating(p.dtype, [&](auto type) {
      using Storage = typename decltype(type)::type;
      const auto to = head_slice<Storage>(p.d_q, head / p.kv_heads, head % p.kv_heads * group + r / p.queries);
      for (std::int64_t d = 0; d < p.qk_width; ++d) to(r % p.queries, d) = store<Storage>(row[static_cast<std::size_t>(d)]);
    });
  }
}

void add_parts(const BackwardProblem& p, const Cut& cut, std::int64_t head, const void* sums, std::int64_t first, std::int64_t last) {
  p.dtype == DType::f64 ? add_parts_of(p, cut, head, static_cast<const double*>(sums), first, last)
                        : add_parts_of(p, cut, head, static_cast<const float*>(sums), first, last);
}

BackwardTask sizes_of(const BackwardProblem& p) {
  BackwardTask task;
  task.dtype = p.dtype;
  task.heads = p.heads / p.kv_heads, task.queries = p.queries, task.keys = p.keys, task.qk_width = p.qk_width, task.v_width = p.v_width;
  return task;
}

}  // namespace

void sdpa_backward(const BackwardProblem& p) {
  std::optional<BiasGradient> bias;
  if (p.d_bias) bias.emplace(p);
  if (p.batch * p.heads * p.queries * p.keys == 0) {  // there may be more heads without a pair than can be gone through
    for (const TensorView& gradient : {p.d_q, p.d_k, p.d_v}) {
      if (gradient) fill(gradient, 0);
    }
  } else {
    const SdpaKernels& kernels = current_kernels().sdpa;
    const Cut cut(p, bias ? &*bias : nullptr);
    const std::int64_t group = p.heads / p.kv_heads, group_rows = group * p.queries, stride = backward_sums_stride(p.qk_width);
    const std::int64_t size = p.dtype == DType::f64 ? 8 : 4, sums_bytes = group_rows * stride * size;
    const std::int64_t scratch_bytes = kernels.backward_scratch(sizes_of(p));
    // Parts that run on different threads, or one head's, which are added as soon as they are there; none where d_q is not wanted.
    const bool together = cut.part_units == 1;
    std::optional<ScratchMemory> parts;
    if (!together && p.d_q) parts.emplace(std::max<std::int64_t>(1, p.batch * p.kv_heads * cut.parts * sums_bytes));

    // A thread's wake-up is worth 50 us: 10^6 multiplications.
    const double work = 2.5 * static_cast<double>(p.batch * p.heads * p.queries) * static_cast<double>(p.keys * (p.qk_width + p.v_width)) /
                        static_cast<double>(std::max<std::int64_t>(1, cut.units()));
    const auto grain = static_cast<std::int64_t>(std::clamp(1e6 / std::max(work, 1.0), 1.0, 1e6));
    parallel_for(cut.units(), grain, p.executor, [&](std::int64_t first, std::int64_t last) {
      const ScratchMemory scratch(scratch_bytes);
      std::optional<ScratchMemory> own_sums;
      if (together && p.d_q) own_sums.emplace(std::max<std::int64_t>(1, cut.parts * sums_bytes));
      std::vector<RowKind> kinds;
      const auto run = [&](std::int64_t b, std::int64_t kv, std::int64_t part) {
        BackwardTask task;
        static_cast<HeadGroup&>(task) = head_group(p, p.q, p.k, p.v, b, kv, kinds);
        const std::int64_t n = kv * group;
        task.out = plane_of(p.out, b, n), task.lse = plane_of(p.lse, b, n), task.d_out = plane_of(p.d_out, b, n);
        task.d_q = plane_of(p.d_q, b, n), task.d_k = plane_of(p.d_k, b, kv), task.d_v = plane_of(p.d_v, b, kv);
        if (bias) task.d_bias = bias->plane(b, n), task.write_d_bias = bias->written(), task.stream_d_bias = bias->streamed();
        task.first_key = part * cut.keys_per_part, task.last_key = std::min(p.keys, task.first_key + cut.keys_per_part);
        task.store_d_q = cut.parts == 1;
        if (parts) task.d_q_sums = static_cast<char*>(parts->get()) + ((b * p.kv_heads + kv) * cut.parts + part) * sums_bytes;
        if (own_sums) task.d_q_sums = static_cast<char*>(own_sums->get()) + part * sums_bytes;
        kernels.backward(task, scratch.get());
      };
      for (std::int64_t unit = first; unit < last; ++unit) {
        const std::int64_t part = unit % cut.part_units, kv = unit / cut.part_units % cut.heads, b = unit / cut.part_units / cut.heads;
        // A unit that stands for all sequences or all heads goes through them, heads outermost: their part of d_bias stays in the cache.
        for (std::int64_t h = kv; h < p.kv_heads; h += cut.heads) {
          for (std::int64_t s = b; s < p.batch; s += cut.sequences) {
            for (std::int64_t of_head = part; of_head < cut.parts; of_head += cut.part_units) run(s, h, of_head);
            if (own_sums && cut.parts > 1) add_parts(p, cut, s * p.kv_heads + h, own_sums->get(), 0, group_rows);
          }
        }
      }
    });
    if (parts) {
      const std::int64_t row_grain = std::max<std::int64_t>(1, 20'000 / std::max<std::int64_t>(1, stride * cut.parts));
      parallel_for(p.batch * p.kv_heads * group_rows, row_grain, p.executor, [&](std::int64_t first, std::int64_t last) {
        while (first < last) {
          const std::int64_t head = first / group_rows, begin = head * group_rows, end = std::min(last, begin + group_rows);
          add_parts(p, cut, head, static_cast<const char*>(parts->get()) + head * cut.parts * sums_bytes, first - begin, end - begin);
          first = end;
        }
      });
    }
  }
  if (bias) bias->store();
}

}  // namespace polyhead::cpu
