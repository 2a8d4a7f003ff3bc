// Measures GFLOP/s of the products that layers of a model compute: y = x W^T, d_x = d_y W and d_W = d_y^T x. The arguments are rows, depth and columns.
#include <benchmark/benchmark.h>

#include "cpu/gemm/gemm.h"
#include "polyhead/tensor.h"

namespace polyhead::cpu {
namespace {

enum class Of { y, d_x, d_weight };

void product(benchmark::State& state, DType dtype, int threads, Of of = Of::y) {
  set_num_threads(threads);
  const std::int64_t rows = state.range(0), depth = state.range(1), columns = state.range(2);
  // The tensors have the shapes that they have in a layer: for d_W, d_y is [depth, rows]; for y, the weight is [columns, depth].
  Tensor a(dtype, of == Of::d_weight ? Shape{depth, rows} : Shape{rows, depth}), b(dtype, of == Of::y ? Shape{columns, depth} : Shape{depth, columns}), c(dtype, {rows, columns});
  fill(a, 1);
  fill(b, 0.5);
  const ConstTensorView a_view = of == Of::d_weight ? a.view().transpose(0, 1) : a.view(), b_view = of == Of::y ? b.view().transpose(0, 1) : b.view();
  for (auto _ : state) {
    gemm({.a = a_view, .b = b_view, .c = c});
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
BENCHMARK_CAPTURE(product, bfloat16_d_x, DType::bf16, 1, Of::d_x)->Apply(sizes);
BENCHMARK_CAPTURE(product, bfloat16_d_weight, DType::bf16, 1, Of::d_weight)->Apply(sizes);

}  // namespace
}  // namespace polyhead::cpu
