// Computes how evenly schedule.cc, and a layer that divides its work into chunks, load the threads: work / (threads x longest thread), in per cent.
//
//     bench_schedule          prints the table "Many threads" of docs/experiments.md
//     bench_schedule --csv    prints figures for every number of threads from 1 to 128, for bench/plot_schedule.py
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "cpu/gemm/gemm.h"
#include "cpu/sdpa/schedule.h"
#include "cpu/sdpa/task.h"
#include "nn/chunks.h"

namespace polyhead {
namespace {

using cpu::AttentionSizes;

AttentionSizes sizes_of(std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys, std::int64_t width,
                        bool causal = false) {
  AttentionSizes sizes;
  sizes.batch = batch, sizes.kv_heads = heads, sizes.queries = queries, sizes.keys = keys, sizes.qk_width = sizes.v_width = width;
  sizes.banded = causal, sizes.lower = -queries, sizes.upper = 1;
  return sizes;
}

double forward(const AttentionSizes& sizes, int threads) {
  const std::int64_t block = cpu::forward_key_block(sizes.qk_width, sizes.v_width, sizes.element_bytes);
  return cpu::ForwardSchedule(sizes, cpu::block_sizes(1 << 20), block, true, threads).load.efficiency(threads);
}

double backward(const AttentionSizes& sizes, int threads, const cpu::Together& together = {}) {
  return cpu::BackwardSchedule(sizes, together, threads).load.efficiency(threads);
}

AttentionSizes decode(std::int64_t keys) {
  AttentionSizes sizes = sizes_of(1, 8, 1, keys, 128);
  sizes.group = 4;
  return sizes;
}

// How evenly a matrix product with many rows loads the threads. They compute blocks of 132 rows and panels of 32 columns, the sizes of the AVX-512 kernel.
double product(std::int64_t rows, std::int64_t columns, int threads) {
  const std::int64_t row_blocks = (rows + 131) / 132, panels = (columns + 31) / 32,
                     group = cpu::panels_of_item(row_blocks, panels, threads);
  const std::int64_t items = row_blocks * ((panels + group - 1) / group);
  return static_cast<double>(items) / static_cast<double>(threads * longest_share(items, 1, threads));
}

// How evenly a gated layer loads the threads in evaluation, with 128 sequences of 256 positions, 8 heads and width 256. Either each thread takes chunks of
// sequences, or all threads share each step.
double gated_layer(int threads) {
  constexpr std::int64_t kSequences = 128, kLength = 256, kWidth = 256;
  LimitedThreads executor(threads);
  const nn::Chunks chunks(kSequences, kLength * kWidth * 6 * 4, 5 * kWidth * kWidth * 4, &executor);
  if (chunks.count() > 1)
    return static_cast<double>(chunks.count()) / static_cast<double>(threads * longest_share(chunks.count(), 1, threads));
  constexpr double kProjections = 5.0 * kSequences * kLength * kWidth * kWidth, kAttention = 2.0 * kSequences * kLength * kLength * kWidth;
  const double time = kProjections / product(kSequences * kLength, kWidth, threads) +
                      kAttention / forward(sizes_of(kSequences, 8, kLength, kLength, 32), threads);
  return (kProjections + kAttention) / time;
}

struct Row {
  const char* name;
  std::function<double(int)> efficiency;
};

const Row kRows[] = {
    {"forward S2048", [](int t) { return forward(sizes_of(1, 8, 2048, 2048, 64), t); }},
    {"forward causal S2048", [](int t) { return forward(sizes_of(1, 8, 2048, 2048, 64, true), t); }},
    {"forward S512", [](int t) { return forward(sizes_of(1, 8, 512, 512, 64), t); }},
    {"one query 32/8 heads S32768 D128", [](int t) { return forward(decode(32'768), t); }},
    {"one query 32/8 heads S8192 D128", [](int t) { return forward(decode(8192), t); }},
    {"backward S2048", [](int t) { return backward(sizes_of(1, 8, 2048, 2048, 64), t); }},
    {"backward causal S2048", [](int t) { return backward(sizes_of(1, 8, 2048, 2048, 64, true), t); }},
    {"backward causal S8192", [](int t) { return backward(sizes_of(1, 8, 8192, 8192, 64, true), t); }},
    {"backward S512", [](int t) { return backward(sizes_of(1, 8, 512, 512, 64), t); }},
    {"gated layer 128 x 256, evaluation", gated_layer},
    {"attention backward of the gated layer, shared d_bias",
     [](int t) { return backward(sizes_of(128, 8, 256, 256, 32), t, {.sequences = true, .groups = true}); }},
};

void print(const std::vector<int>& threads, const char* begin, const char* between, const char* end, bool ruled) {
  std::printf("%sthreads", begin);
  for (const int t : threads) std::printf("%s%d", between, t);
  std::printf("%s\n", end);
  if (ruled) {
    std::printf("|---");
    for (std::size_t i = 0; i < threads.size(); ++i) std::printf("|---");
    std::printf("|\n");
  }
  for (const Row& row : kRows) {
    std::printf("%s%s", begin, row.name);
    for (const int t : threads) std::printf("%s%.0f", between, std::floor(100 * row.efficiency(t)));
    std::printf("%s\n", end);
  }
}

}  // namespace
}  // namespace polyhead

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--csv") == 0) {
    std::vector<int> threads;
    for (int t = 1; t <= 128; ++t) threads.push_back(t);
    polyhead::print(threads, "", ";", "", false);
  } else {
    polyhead::print({1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128}, "| ", " | ", " |", true);
  }
  return 0;
}
