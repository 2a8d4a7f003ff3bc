// sweep COUNT: computes COUNT random attention problems, forward and backward, with the kernels and with the reference. Prints a line for each problem with a digest of its
// results and their difference; exits with 1 if a difference is too large. sweep speed: prints the GFLOP/s of a forward pass. tests/live/engine_test.py runs this program
// natively and as WebAssembly under node.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <vector>

#include "polyhead/polyhead.h"

namespace {

using namespace polyhead;

struct Draw {
  std::mt19937 bits;
  std::int64_t below(std::int64_t count) { return static_cast<std::int64_t>(bits() % static_cast<std::uint32_t>(count)); }
  double number() { return static_cast<double>(bits() % 20001) / 10000.0 - 1.0; }
  Tensor tensor(DType dtype, const Shape& shape) {
    Tensor exact(DType::f64, shape);
    for (std::int64_t i = 0; i < exact.numel(); ++i) exact.data<double>()[i] = 1.5 * number();
    return Tensor::copy_of(exact, dtype);
  }
};

struct Results {
  Tensor out, lse, d_q, d_k, d_v, d_bias;
};

// Returns the largest difference divided by the largest magnitude.
double apart(const Tensor& a, const Tensor& b) {
  if (!a) return 0;
  const Tensor x = Tensor::copy_of(a, DType::f64), y = Tensor::copy_of(b, DType::f64);
  double most = 0, largest = 1e-30;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double p = x.data<double>()[i], q = y.data<double>()[i];
    if (p == q || (std::isnan(p) && std::isnan(q))) continue;
    if (!std::isfinite(p) || !std::isfinite(q)) return 1e30;
    most = std::max(most, std::abs(p - q)), largest = std::max(largest, std::abs(q));
  }
  return most / std::max(largest, 1e-3);
}

double digest(const Tensor& a) {
  if (!a) return 0;
  const Tensor x = Tensor::copy_of(a, DType::f64);
  double sum = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i)
    if (std::isfinite(x.data<double>()[i])) sum += x.data<double>()[i] * (1 + static_cast<double>(i % 7));
  return sum;
}

bool run_one(std::uint32_t seed) {
  Draw draw{std::mt19937(seed)};
  constexpr DType kDTypes[] = {DType::f32, DType::f32, DType::f64, DType::f16, DType::bf16};
  const DType dtype = kDTypes[draw.below(5)];
  const std::int64_t batch = 1 + draw.below(2), shared = 1 + draw.below(2), heads = shared * (1 + draw.below(2)), queries = draw.below(70), keys = draw.below(70), width = 1 + draw.below(40), value = 1 + draw.below(40);
  const Tensor q = draw.tensor(dtype, {batch, heads, queries, width}), k = draw.tensor(dtype, {batch, shared, keys, width}), v = draw.tensor(dtype, {batch, shared, keys, value}), d_out = draw.tensor(dtype, {batch, heads, queries, value});
  SdpaOptions options;
  if (draw.below(3) == 0) options.mask.causal = Causal::bottom_right();
  if (draw.below(4) == 0) options.mask.window = {.left = draw.below(20), .right = draw.below(20)};
  if (draw.below(4) == 0) options.softcap = 2;
  if (draw.below(4) == 0) options.dropout = {.p = 0.25, .seed = seed};
  Tensor bias, attend;
  if (draw.below(3) == 0) options.bias = bias = draw.tensor(dtype, {1, heads, queries, keys});
  if (draw.below(3) == 0) {
    attend = Tensor(DType::boolean, {batch, 1, queries, keys});
    for (std::int64_t i = 0; i < attend.numel(); ++i) attend.data<bool>()[i] = draw.below(4) != 0;
    options.mask.attend = attend;
  }
  const auto compute = [&](const char* backend) {
    options.backend = &find_backend(backend);
    const DType statistics = dtype == DType::f64 ? DType::f64 : DType::f32;
    Results r{Tensor(dtype, {batch, heads, queries, value}), Tensor(statistics, {batch, heads, queries}), Tensor(dtype, q.shape()), Tensor(dtype, k.shape()), Tensor(dtype, v.shape()), bias ? Tensor(dtype, bias.shape()) : Tensor()};
    sdpa_forward({.q = q, .k = k, .v = v, .out = r.out, .lse = r.lse}, options);
    sdpa_backward({.q = q, .k = k, .v = v, .out = r.out, .lse = r.lse, .d_out = d_out, .d_q = r.d_q, .d_k = r.d_k, .d_v = r.d_v, .d_bias = r.d_bias}, options);
    return r;
  };
  const Results fast = compute("cpu"), exact = compute("reference");
  const double allowed = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 2e-5 : dtype == DType::f16 ? 1e-2 : 8e-2;
  double most = 0;
  for (const auto member : {&Results::out, &Results::lse, &Results::d_q, &Results::d_k, &Results::d_v, &Results::d_bias}) most = std::max(most, apart(fast.*member, exact.*member));
  std::printf("%u %s %.9g %.9g %.9g %.9g %s\n", seed, std::string(info(dtype).name).c_str(), digest(fast.out), digest(fast.d_q), digest(fast.d_k), digest(fast.d_v), most <= allowed ? "ok" : "FAR");
  if (most > allowed) std::printf("  %.3g apart; %.3g is allowed\n", most, allowed);
  return most <= allowed;
}

int speed() {
  constexpr std::int64_t kKeys = 128, kWidth = 64, kHeads = 8;
  Draw draw{std::mt19937(1)};
  const Tensor q = draw.tensor(DType::f32, {1, kHeads, kKeys, kWidth}), k = draw.tensor(DType::f32, q.shape()), v = draw.tensor(DType::f32, q.shape());
  Tensor out(DType::f32, q.shape());
  double best = 1e9;
  for (int n = 0; n < 2000; ++n) {
    const auto begin = std::chrono::steady_clock::now();
    sdpa_forward({.q = q, .k = k, .v = v, .out = out});
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::printf("[1,8,128,64] float32 forward: %.3f ms, %.1f GFLOP/s\n", best, 4.0 * kHeads * kKeys * kKeys * kWidth / best / 1e6);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1 && std::string_view(arguments[1]) == "speed") return speed();
  set_num_threads(1);
  const int problems = count > 1 ? std::atoi(arguments[1]) : 200;
  int failed = 0;
  for (int seed = 1; seed <= problems; ++seed) failed += run_one(static_cast<std::uint32_t>(seed)) ? 0 : 1;
  std::printf("%d passed, %d failed\n", problems - failed, failed);
  return failed == 0 ? 0 : 1;
}
