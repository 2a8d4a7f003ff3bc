// What multiplications alone reach: the roof that benchmarks measure kernels against.
#include "cpu/vector.h"

namespace polyhead::cpu::POLYHEAD_ISA {

// x = x a + b in 12 registers, `rounds` times: enough to hide a latency of 4 or 5 cycles on two ports. Returns the operations done.
double fused_operations(std::int64_t rounds) {
  constexpr int kSums = 12;
  Vector<float> sums[kSums], a = broadcast(0.999f), b = broadcast(1e-3f);
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) sums[i] = a;
#pragma GCC unroll 1
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      sums[i] = sums[i] * a + b;
#if defined(__x86_64__)
      asm volatile("" : "+v"(sums[i]));  // neither dropped nor moved
#else
      asm volatile("" : "+w"(sums[i]));
#endif
    }
  }
  return static_cast<double>(rounds) * kSums * 2 * kLanes<float>;
}

}  // namespace polyhead::cpu::POLYHEAD_ISA
