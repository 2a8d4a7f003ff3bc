// Tests problems with one key. They must have the same bits as a problem with this key and a masked key, and the gradients of the reference.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/kernel_case.h"
#include "support/seeds.h"

namespace polyhead::test {
namespace {

// Compares bit for bit, except that any NaN equals any other NaN.
void expect_same_numbers(const Tensor& actual, const Tensor& expected, const char* name) {
  const std::vector<double> a = to_doubles(actual), e = to_doubles(expected);
  ASSERT_EQ(a.size(), e.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(e[i])) continue;
    ASSERT_EQ(std::memcmp(&a[i], &e[i], sizeof(double)), 0) << name << " " << i << ": " << a[i] << ", expected " << e[i];
  }
}

struct OneKey {
  DType dtype;
  std::int64_t batch, kv_heads, heads, queries, qk_width, v_width;
  Tensor q, k, v;  // k and v have two keys; the problem with one key has only the first key
  bool finite = true;

  explicit OneKey(Random& random) {
    dtype = random.pick({DType::f32, DType::f32, DType::f64});
    batch = random.integer(1, 3), kv_heads = random.integer(1, 3), heads = kv_heads * random.integer(1, 3), queries = random.integer(1, 5);
    qk_width = random.integer(0, 70), v_width = random.integer(0, 70);
    const double magnitude = random.pick({0.1, 1.0, 30.0, 1e18});
    q = random.tensor(dtype, {batch, heads, queries, qk_width}, -magnitude, magnitude);
    k = random.tensor(dtype, {batch, kv_heads, 2, qk_width}, -magnitude, magnitude);
    v = random.tensor(dtype, {batch, kv_heads, 2, v_width}, -1, 1);
    for (Tensor* of : {&q, &k, &v}) {
      if (random.integer(0, 3) != 0) continue;
      const double value = random.pick({-0.0, 0.0, 1e37, kNaN, kInfinity, -kInfinity});
      finite = finite && std::isfinite(value);
      const std::int64_t width = of->extent(-1), first = random.integer(0, width);
      fill(of->view().slice(0, 0, 1).slice(-1, first, width), value);
    }
  }
  ConstTensorView first(const Tensor& of) const { return of.view().slice(-2, 0, 1); }
};

TEST(CpuOneKey, HasTheBitsOfThatKeyWithAMaskedKey) {
  for (const std::uint64_t seed : seeds_of_kernels(7000, 400)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const OneKey c(random);
    Tensor lengths(DType::i64, {c.batch});
    fill(lengths, 1);
    SdpaOptions options, masked;
    options.backend = masked.backend = &find_backend("cpu");
    options.scale = masked.scale = random.pick({std::optional<double>(), std::optional(0.37), std::optional(-1.7), std::optional(0.0)});
    masked.mask.key_lengths = lengths;
    const Shape rows{c.batch, c.heads, c.queries}, outs{c.batch, c.heads, c.queries, c.v_width};
    for_each_instruction_set(seed, [&] {
      const DType sums = accumulation_dtype(c.dtype);
      Tensor out(c.dtype, outs), lse(sums, rows), alone(c.dtype, outs), expected(c.dtype, outs), expected_lse(sums, rows);
      sdpa_forward({.q = c.q, .k = c.k, .v = c.v, .out = expected.view(), .lse = expected_lse.view()}, masked);
      sdpa_forward({.q = c.q, .k = c.first(c.k), .v = c.first(c.v), .out = out.view(), .lse = lse.view()}, options);
      sdpa_forward({.q = c.q, .k = c.first(c.k), .v = c.first(c.v), .out = alone.view()}, options);
      expect_same_numbers(out, expected, "out"), expect_same_numbers(lse, expected_lse, "lse");
      expect_same_numbers(alone, expected, "out without lse");
    });
    if (HasFailure()) return;
  }
}

TEST(CpuOneKey, HasTheGradientsOfTheReference) {
  for (const std::uint64_t seed : seeds_of_kernels(8000, 400)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const OneKey c(random);
    const ConstTensorView k = c.first(c.k), v = c.first(c.v);
    SdpaOptions options, slow;
    options.backend = &find_backend("cpu"), slow.backend = &find_backend("reference");
    const Shape outs{c.batch, c.heads, c.queries, c.v_width};
    const Tensor d_out = random.tensor(c.dtype, outs);
    for_each_instruction_set(seed, [&] {
      const DType sums = accumulation_dtype(c.dtype);
      Tensor out(c.dtype, outs), lse(sums, {c.batch, c.heads, c.queries});
      Tensor d_q(c.dtype, c.q.shape()), d_k(c.dtype, k.shape()), d_v(c.dtype, v.shape());
      Tensor e_q(c.dtype, c.q.shape()), e_k(c.dtype, k.shape()), e_v(c.dtype, v.shape());
      for (Tensor* of : {&d_q, &d_k, &d_v}) fill(of->view(), kNaN);
      sdpa_forward({.q = c.q, .k = k, .v = v, .out = out.view(), .lse = lse.view()}, options);
      sdpa_backward({.q = c.q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q.view(), .d_k = d_k.view(), .d_v = d_v.view()}, options);
      if (!c.finite || !std::ranges::all_of(to_doubles(lse), [](double x) { return std::abs(x) < 1e4; })) return;
      sdpa_backward({.q = c.q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = e_q.view(), .d_k = e_k.view(), .d_v = e_v.view()}, slow);
      EXPECT_TRUE(near(d_v, e_v, 1e-5)) << "d_v";
      if (c.heads / c.kv_heads * c.queries > 16) return;
      for (const double x : to_doubles(d_q)) EXPECT_EQ(x, 0);
      for (const double x : to_doubles(d_k)) EXPECT_EQ(x, 0);
    });
    if (HasFailure()) return;
  }
}

// If there are NaN or infinities, or if lse is not the score, the gradients must still be those of the reference.
TEST(CpuOneKey, LeavesNonFiniteNumbersAndAnotherLseToTheKernel) {
  Random random(1);
  const Tensor q = random.tensor(DType::f32, {2, 3, 1, 8}), k = random.tensor(DType::f32, {2, 3, 1, 8}), d_out = random.tensor(DType::f32, {2, 3, 1, 8});
  for (const double value : {kNaN, kInfinity, 0.5}) {
    for (const bool of_v : {false, true}) {
      SCOPED_TRACE(value);
      Tensor v = random.tensor(DType::f32, {2, 3, 1, 8}), out = Tensor::copy_of(v), lse(DType::f32, {2, 3, 1});
      if (of_v) fill(v.view().slice(0, 0, 1).slice(-1, 2, 3), value);
      SdpaOptions options, slow;
      options.backend = &find_backend("cpu"), slow.backend = &find_backend("reference");
      for_each_instruction_set([&] {
        sdpa_forward({.q = q, .k = k, .v = v, .out = out.view(), .lse = lse.view()}, options);
        if (!of_v) fill(lse.view().slice(0, 1, 2), 40.0);
        Tensor d_q(DType::f32, q.shape()), d_v(DType::f32, q.shape()), e_q(DType::f32, q.shape()), e_v(DType::f32, q.shape());
        sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q.view(), .d_v = d_v.view()}, options);
        sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = e_q.view(), .d_v = e_v.view()}, slow);
        EXPECT_TRUE(near(d_q, e_q, 1e-5)) << "d_q";
        EXPECT_TRUE(near(d_v, e_v, 1e-5)) << "d_v";
      });
    }
  }
}

}  // namespace
}  // namespace polyhead::test
