// Measures how many floating point operations per second one core can do at most: independent fused multiply-adds on registers, best of many runs.
#include <chrono>

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
using Vector = float __attribute__((vector_size(kLanes * 4)));

// Number of sums that are computed at the same time. Two ports with 4 to 5 cycles of latency need 10 independent sums to be busy; 12 fit into the registers of
// every instruction set. Loops over the sums must be unrolled, because otherwise GCC keeps the array of sums in memory.
constexpr int kSums = 12;

float multiply_add(long rounds, float factor) {
  Vector sums[kSums], a = Vector{} + factor, b = Vector{} + 1e-9f;
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) sums[i] = Vector{} + static_cast<float>(i);
  for (long round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * a + b;
  }
  Vector total{};
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) total += sums[i];
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += total[lane];
  return sum;
}

}  // namespace

#ifdef POLYHEAD_ISA  // bench_sdpa compiles this file for each instruction set; roof.py compiles a library for one instruction set
namespace polyhead::cpu::POLYHEAD_ISA {
#else
extern "C" {
#endif
double fma_roof(double seconds);

// Returns the best GFLOP/s of one thread in runs that take `seconds` in all.
double fma_roof(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  constexpr long kRounds = 200000;
  double best = 0;
  [[maybe_unused]] volatile float sink = 0;
  while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds) {
    const auto start = Clock::now();
    sink = multiply_add(kRounds, 0.999f);
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    const double rate = 2.0 * kLanes * kSums * kRounds / elapsed * 1e-9;
    best = rate > best ? rate : best;
  }
  return best;
}
}
