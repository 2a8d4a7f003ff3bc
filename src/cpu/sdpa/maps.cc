#include <limits>

#include "cpu/scratch_memory.h"
#include "cpu/sdpa/group.h"
#include "cpu/sdpa/sdpa.h"
#include "cpu/select.h"

namespace polyhead::cpu {
namespace {

// Consecutive entries of the list of chosen queries that belong to one document. One call of the kernel computes them.
struct Run {
  const Document& document;
  std::int64_t first, last;             // range of indices in the list of chosen queries
  std::vector<std::int64_t> queries{};  // positions of the queries in the document
};

template <class F>
void for_each_run(const MapsProblem& p, std::span<const std::int64_t> queries, const F& f) {
  const Document all{{0, p.queries}, {0, p.keys}};
  const auto count = static_cast<std::int64_t>(queries.size());
  for (std::int64_t first = 0; first < count;) {
    const auto query = [&](std::int64_t i) { return queries[static_cast<std::size_t>(i)]; };
    const Document& document = p.unmasked() || !p.packed() ? all : document_of(p, query(first));
    Run run{document, first, first};
    for (; run.last < count && document.queries.first <= query(run.last) && query(run.last) < document.queries.last; ++run.last) {
      run.queries.push_back(query(run.last) - document.queries.first);
    }
    f(run);
    first = run.last;
  }
}

// Computes the map rows of the queries of `run`. place(task) sets where the kernel writes the rows.
template <class F>
void run_kernel(const MapsProblem& problem, std::int64_t b, std::int64_t n, const Run& run, const F& place) {
  const bool cut = problem.packed() && !problem.unmasked();
  const MapsProblem part = cut ? part_of(problem, run.document) : problem;
  MapsTask task;
  set_sizes(part, task);
  set_heads(part, nullptr, part.q, part.k, b, part.kv_head(n), task);
  task.k_scale = head_view(part.k_scale, b, part.kv_head(n));
  std::vector<RowKind> kinds;
  if (part.unmasked()) {
    static_cast<KeySet&>(task) = KeySet{};
    task.queries = part.queries, task.keys = part.keys;
    task.bias = {};
    if (part.value == MapValue::scaled_score) task.softcap = 0, task.rule = nullptr;
  } else if (part.empty_rows != EmptyRows::zero && part.rules->any()) {
    kinds.assign(static_cast<std::size_t>(task.heads * task.queries), RowKind::masked);
    for (const std::int64_t t : run.queries) kinds[static_cast<std::size_t>(n % task.heads * task.queries + t)] = row_kind(task, part.empty_rows, n % task.heads, t);
    task.row_kinds = kinds.data();
  }
  task.probability = part.value == MapValue::probability || part.value == MapValue::dropped;
  task.dropout = task.dropout && part.value == MapValue::dropped;
  task.head = n % task.heads;
  task.chosen = run.queries.data(), task.count = run.last - run.first;
  place(task);
  const auto& kernels = current_kernels_of<MapsKernels>();
  const ScratchMemory scratch(kernels.maps_scratch(task), problem.workspace);
  kernels.maps(task, scratch.get());
}

// Returns the value of a map at a masked pair.
double masked_value(const MapsProblem& p) {
  return p.value == MapValue::score ? -std::numeric_limits<double>::infinity() : 0;
}

}  // namespace

void map_rows(const MapsProblem& p, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, const RowConsumer& consumer) {
  for_each_run(p, queries, [&](const Run& run) {
    struct Consumer {
      const RowConsumer& consumer;
      const Run& run;
      std::vector<double> row;  // a row over all keys of the packed sequence; empty if the document has all keys
    } rows{consumer, run, {}};
    if (run.document.keys.last - run.document.keys.first < p.keys) rows.row.assign(static_cast<std::size_t>(p.keys), masked_value(p));
    run_kernel(p, b, n, run, [&](MapsTask& task) {
      task.consumer = &rows;
      task.consume = [](void* to, std::int64_t i, const double* values, KeyRange own, double entropy, double sink) {
        Consumer& it = *static_cast<Consumer*>(to);
        const KeyRange keys = it.run.document.keys;
        std::span<const double> row(values, static_cast<std::size_t>(keys.last - keys.first));
        if (!it.row.empty()) {
          std::copy(row.begin(), row.end(), it.row.begin() + keys.first);
          row = it.row;
        }
        it.consumer({it.run.first + i, row, {keys.first + own.first, keys.first + own.last}, entropy, sink});
      };
    });
  });
}

void write_maps(const MapsProblem& p, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, TensorView out) {
  const std::int64_t size = static_cast<std::int64_t>(info(out.dtype()).size);
  for_each_run(p, queries, [&](const Run& run) {
    run_kernel(p, b, n, run, [&](MapsTask& task) {
      task.out = head_view(out, b, n), task.out_dtype = out.dtype();
      const KeyRange keys = run.document.keys;
      const TensorView head(task.out.data, out.dtype(), out.shape().last(2), {task.out.row, task.out.column});
      fill_other_keys(head.slice(0, run.first, run.last), keys, masked_value(p));
      task.out.data = static_cast<char*>(task.out.data) + (run.first * task.out.row + keys.first * task.out.column) * size;
    });
  });
}

double entropy_of_mean(DType dtype, const void* p, const void* q, std::int64_t count) {
  return current_kernels_of<MapsKernels>().entropy_of_mean(dtype, p, q, count);
}

}  // namespace polyhead::cpu
