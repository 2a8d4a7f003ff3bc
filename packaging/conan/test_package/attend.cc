// One query over two keys with the scores 0 and log 3: the weights are 1/4 and 3/4, the output 1/4 * 4 + 3/4 * 0.
#include <polyhead/polyhead.h>
#include <polyhead/version.h>

#include <cmath>
#include <cstdio>

int main() {
  using polyhead::Tensor;
  const Tensor q = Tensor::of<float>({1, 1, 1}, {1.0f}), k = Tensor::of<float>({1, 2, 1}, {0.0f, std::log(3.0f)}), v = Tensor::of<float>({1, 2, 1}, {4.0f, 0.0f});
  Tensor out(polyhead::DType::f32, {1, 1, 1});
  polyhead::sdpa_forward({.q = q, .k = k, .v = v, .out = out});
  std::printf("polyhead %s: %g\n", POLYHEAD_VERSION, static_cast<double>(out.data<float>()[0]));
  return std::abs(out.data<float>()[0] - 1.0f) < 1e-5f ? 0 : 1;
}
