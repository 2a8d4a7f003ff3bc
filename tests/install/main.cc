// Attention of one query over two keys. The scores are 0 and log 3, so the attention weights are 1/4 and 3/4.
#include <polyhead/polyhead.h>
#include <polyhead/version.h>

#include <cmath>
#include <cstdio>
#include <cstring>

int main() {
  using polyhead::Tensor;
  const Tensor q = Tensor::of<float>({1, 1, 1}, {1.0f});
  const Tensor k = Tensor::of<float>({1, 2, 1}, {0.0f, std::log(3.0f)});
  const Tensor v = Tensor::of<float>({1, 2, 2}, {4.0f, 8.0f, 0.0f, 16.0f});
  Tensor out(polyhead::DType::f32, {1, 1, 2});
  polyhead::sdpa_forward({.q = q, .k = k, .v = v, .out = out});
  std::printf("polyhead %s: %g %g\n", POLYHEAD_VERSION, static_cast<double>(out.data<float>()[0]),
              static_cast<double>(out.data<float>()[1]));
  if (polyhead::detect_cpu().online < 1) return 1;
  const bool right = std::abs(out.data<float>()[0] - 1.0f) < 1e-5f && std::abs(out.data<float>()[1] - 14.0f) < 1e-5f;
  return right && std::strcmp(POLYHEAD_VERSION, EXPECTED_VERSION) == 0 ? 0 : 1;
}
