// Measures GFLOP/s of the products that layers of a model compute: rows, depth, columns, with transposed weights as in Linear.
#include <benchmark/benchmark.h>

#include "cpu/gemm/gemm.h"
#include "polyhead/tensor.h"

namespace polyhead::cpu {
namespace {

void product(benchmark::State& state, DType dtype, int threads) {
  set_num_threads(threads);
  const std::int64_t rows = state.range(0), depth = state.range(1), columns = state.range(2);
  Tensor a(dtype, {rows, depth}), weight(dtype, {columns, depth}), c(dtype, {rows, columns});
  fill(a, 1);
  fill(weight, 0.5);
  for (auto _ : state) {
    gemm({.a = a, .b = weight.view().transpose(0, 1), .c = c});
    benchmark::DoNotOptimize(c.view().data());
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(rows * depth * columns), benchmark::Counter::kIsIterationInvariantRate);
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseRealTime();
  for (const auto& size : {std::vector<std::int64_t>{1, 384, 384},
                           {11, 384, 384},
                           {11, 384, 1536},
                           {11, 1536, 384},
                           {128, 384, 384},
                           {1024, 384, 384},
                           {1024, 768, 768},
                           {384, 4096, 384}}) {
    benchmark->Args(size);
  }
}

BENCHMARK_CAPTURE(product, float32, DType::f32, 1)->Apply(sizes);
BENCHMARK_CAPTURE(product, float32_2_threads, DType::f32, 2)->Apply(sizes);
BENCHMARK_CAPTURE(product, float64, DType::f64, 1)->Apply(sizes);
BENCHMARK_CAPTURE(product, bfloat16, DType::bf16, 1)->Apply(sizes);

}  // namespace
}  // namespace polyhead::cpu
