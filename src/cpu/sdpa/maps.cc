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

// A task but for where its rows go; `kinds` is memory that it needs.
MapsTask task_of(const MapsProblem& p, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, std::vector<RowKind>& kinds) {
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
  return task;
}

void run(const MapsTask& task) {
  const SdpaKernels& kernels = current_kernels().sdpa;
  const ScratchMemory scratch(kernels.maps_scratch(task));
  kernels.maps(task, scratch.get());
}

}  // namespace

void map_rows(const MapsProblem& p, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, const RowConsumer& row) {
  std::vector<RowKind> kinds;
  MapsTask task = task_of(p, b, n, queries, kinds);
  Taker taker{row, static_cast<std::size_t>(p.keys)};
  task.taker = &taker;
  task.take = [](void* to, std::int64_t i, const double* values) {
    const Taker& it = *static_cast<const Taker*>(to);
    it.consumer(i, {values, it.keys});
  };
  run(task);
}

void write_maps(const MapsProblem& p, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, TensorView out) {
  std::vector<RowKind> kinds;
  MapsTask task = task_of(p, b, n, queries, kinds);
  task.out = plane_of(out, b, n), task.out_dtype = out.dtype();
  run(task);
}

}  // namespace polyhead::cpu
