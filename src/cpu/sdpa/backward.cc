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

// How the work is cut; from the sizes only, so that results do not depend on the threads. A task is one key/value head of one sequence, or a
// part of its keys where there are few: then each part has its own sums of d_q, which are added in the order of the parts.
struct Cut {
  static constexpr std::int64_t kWantedTasks = 8, kLeastKeys = 512;
  std::int64_t parts = 1, keys_per_part = 0;
  // Tasks that add into the same elements of d_bias form a unit: one thread, one order.
  std::int64_t sequences, heads, part_units;  // units are the product of these

  Cut(const BackwardProblem& p, const BiasGradient* bias) {
    sequences = bias != nullptr && bias->shared_by_sequences() ? 1 : p.batch;
    heads = bias != nullptr && bias->shared_by_heads() ? 1 : p.kv_heads;
    const std::int64_t units = std::max<std::int64_t>(1, sequences * heads);
    if (bias == nullptr || !bias->shared_by_keys()) {
      parts = std::clamp<std::int64_t>(p.keys / kLeastKeys, 1, (kWantedTasks + units - 1) / units);
    }
    constexpr std::int64_t kBlock = 256;
    keys_per_part = std::max<std::int64_t>(kBlock, ((p.keys + parts - 1) / parts + kBlock - 1) / kBlock * kBlock);
    parts = std::max<std::int64_t>(1, (p.keys + keys_per_part - 1) / keys_per_part);
    part_units = parts;
  }
  std::int64_t units() const { return sequences * heads * part_units; }
};

template <class T>
void add_parts(const BackwardProblem& p, const Cut& cut, const T* sums, std::int64_t group_rows, std::int64_t stride) {
  const std::int64_t part_size = group_rows * stride, group = p.heads / p.kv_heads;
  parallel_for(p.batch * p.kv_heads * group_rows, std::max<std::int64_t>(1, 20'000 / (stride * cut.parts)), p.executor,
               [&](std::int64_t first, std::int64_t last) {
                 std::vector<T> row(static_cast<std::size_t>(p.qk_width));
                 for (std::int64_t i = first; i < last; ++i) {
                   const std::int64_t head = i / group_rows, r = i % group_rows;
                   const T* from = sums + head * cut.parts * part_size + r * stride;
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
               });
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
    std::optional<ScratchMemory> parts;
    if (cut.parts > 1) parts.emplace(std::max<std::int64_t>(1, p.batch * p.kv_heads * cut.parts * sums_bytes));

    // A thread's wake-up is worth 50 us: 10^6 multiplications.
    const double work = 2.5 * static_cast<double>(p.batch * p.heads * p.queries) * static_cast<double>(p.keys * (p.qk_width + p.v_width)) /
                        static_cast<double>(std::max<std::int64_t>(1, cut.units()));
    const auto grain = static_cast<std::int64_t>(std::clamp(1e6 / std::max(work, 1.0), 1.0, 1e6));
    parallel_for(cut.units(), grain, p.executor, [&](std::int64_t first, std::int64_t last) {
      const ScratchMemory scratch(scratch_bytes);
      std::optional<ScratchMemory> own_sums;
      if (!parts) own_sums.emplace(std::max<std::int64_t>(1, sums_bytes));
      std::vector<RowKind> kinds;
      const auto run = [&](std::int64_t b, std::int64_t kv, std::int64_t part) {
        BackwardTask task;
        static_cast<HeadGroup&>(task) = head_group(p, p.q, p.k, p.v, b, kv, kinds);
        const std::int64_t n = kv * group;
        task.out = plane_of(p.out, b, n), task.lse = plane_of(p.lse, b, n), task.d_out = plane_of(p.d_out, b, n);
        task.d_q = plane_of(p.d_q, b, n), task.d_k = plane_of(p.d_k, b, kv), task.d_v = plane_of(p.d_v, b, kv);
        if (bias) task.d_bias = bias->plane(b, n);
        task.first_key = part * cut.keys_per_part, task.last_key = std::min(p.keys, task.first_key + cut.keys_per_part);
        task.store_d_q = !parts && p.d_q;
        task.d_q_sums = parts ? static_cast<char*>(parts->get()) + ((b * p.kv_heads + kv) * cut.parts + part) * sums_bytes : own_sums->get();
        kernels.backward(task, scratch.get());
      };
      for (std::int64_t unit = first; unit < last; ++unit) {
        const std::int64_t part = unit % cut.part_units, kv = unit / cut.part_units % cut.heads, b = unit / cut.part_units / cut.heads;
        // A unit that stands for all sequences or all heads goes through them, heads outermost: their part of d_bias stays in the cache.
        for (std::int64_t h = kv; h < p.kv_heads; h += cut.heads) {
          for (std::int64_t s = b; s < p.batch; s += cut.sequences) run(s, h, part);
        }
      }
    });
    if (parts && p.d_q) {
      p.dtype == DType::f64 ? add_parts(p, cut, static_cast<const double*>(parts->get()), group_rows, stride)
                            : add_parts(p, cut, static_cast<const float*>(parts->get()), group_rows, stride);
    }
  }
  if (bias) bias->store();
}

}  // namespace polyhead::cpu
