#include "cpu/scratch_memory.h"
#include "cpu/sdpa/group.h"
#include "cpu/sdpa/sdpa.h"
#include "cpu/select.h"

namespace polyhead::cpu {
namespace {

struct Taker {
  const RowConsumer& consumer;
  std::size_t keys;
};

}  // namespace

void map_rows(const MapsProblem& p, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, const RowConsumer& row) {
  std::vector<RowKind> kinds;
  MapsTask task;
  static_cast<HeadGroup&>(task) = head_group(p, p.q, p.k, {}, b, p.kv_head(n), kinds);
  if (p.value == MapValue::scaled_score || p.value == MapValue::capped_score) {  // of masked pairs too
    task.bias = {}, task.mask_count = 0, task.banded = false, task.lengths = nullptr, task.kinds = nullptr;
  }
  if (p.value == MapValue::scaled_score) task.softcap = 0;
  task.probability = p.value == MapValue::probability || p.value == MapValue::dropped;
  task.dropout = task.dropout && p.value == MapValue::dropped;
  task.head = n % task.heads;
  task.chosen = queries.data(), task.count = static_cast<std::int64_t>(queries.size());
  Taker taker{row, static_cast<std::size_t>(p.keys)};
  task.taker = &taker;
  task.take = [](void* to, std::int64_t i, const double* values) {
    const Taker& it = *static_cast<const Taker*>(to);
    it.consumer(i, {values, it.keys});
  };
  const SdpaKernels& kernels = current_kernels().sdpa;
  const ScratchMemory scratch(kernels.maps_scratch(task));
  kernels.maps(task, scratch.get());
}

}  // namespace polyhead::cpu
