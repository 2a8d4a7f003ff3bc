// One step of AdamW for contiguous parameters. A single loop reads p, g, m and v once, because the step is limited by memory bandwidth. The compiler vectorises
// the loop.
#include "cpu/elementwise/kernels.h"
#include "cpu/vector.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

POLYHEAD_INLINE float root(float x) { return __builtin_sqrtf(x); }
POLYHEAD_INLINE double root(double x) { return __builtin_sqrt(x); }

template <class T>
void step(std::int64_t count, const AdamStep& given, const T* __restrict g, T* __restrict m, T* __restrict v, T* __restrict p) {
  const T keep = static_cast<T>(given.keep), rate = static_cast<T>(given.rate), new_m = static_cast<T>(given.new_m),
          old_v = static_cast<T>(given.old_v), new_v = static_cast<T>(given.new_v), root_scale = static_cast<T>(given.root_scale),
          epsilon = static_cast<T>(given.epsilon);
  for (std::int64_t i = 0; i < count; ++i) {
    m[i] += new_m * (g[i] - m[i]);
    v[i] = old_v * v[i] + new_v * (g[i] * g[i]);
    p[i] = keep * p[i] - rate * (m[i] / (root(v[i]) * root_scale + epsilon));
  }
}

}  // namespace

extern const AdamKernels adam_kernels;
constinit const AdamKernels adam_kernels = {step<float>, step<double>};

}  // namespace polyhead::cpu::POLYHEAD_ISA
