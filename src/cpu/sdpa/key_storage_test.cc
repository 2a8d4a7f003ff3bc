// Tests keys and values in another dtype than q. Results are compared with the reference, and bit for bit with results for the same values converted to float32.
#include "polyhead/quantize.h"
#include "support/kernel_case.h"
#include "support/seeds.h"

namespace polyhead::test {
namespace {

AttentionCase drawn(Random& random, std::uint64_t seed) {
  AttentionCase c = draw_case(random, std::array{DType::f32, DType::bf16, DType::f16}[seed % 3],
                              seed % 20 == 0 ? draw_long_sizes(random) : draw_block_sizes(random));
  Random storage(seed + 10'000);  // a second generator, so that this draw does not change the numbers that draw_case() draws
  draw_key_storage(storage, c);
  c.options.backend = &find_backend("cpu");
  return c;
}

TEST(CpuKeyStorage, ForwardIsTheReferenceWithinTheErrorOfTheArithmetic) {
  for (const std::uint64_t seed : seeds_of_kernels(0, 400)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = drawn(random, seed), wide = in_float64(c);
    const AttentionOutputs expected = reference_forward(wide);
    const Tolerances tolerance(c);
    for_each_instruction_set(seed, [&] {
      const AttentionOutputs o = c.make_outputs(&random);
      c.forward(o);
      expect_forward_near(o, expected, tolerance);
      EXPECT_TRUE(padding_is_intact(c.strided()));
    });
    if (HasFailure()) return;
  }
}

TEST(CpuKeyStorage, MapsAreTheReference) {
  for (const std::uint64_t seed : seeds_of_kernels(1000, 100)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = drawn(random, seed);
    if (seed % 2 == 0) c.options.mask.window.left = random.integer(0, 20);  // a narrow window; kernels then pack only keys near the diagonal
    const Tensor expected = reference_map(c, c.maps(), MapValue::probability);
    const Tolerances tolerance(c);
    for_each_instruction_set(seed, [&] {
      Tensor map(DType::f32, c.sizes.pairs());
      attention_map(c.maps(), map, c.options);
      EXPECT_TRUE(near(map, expected, tolerance.lse));
    });
    if (HasFailure()) return;
  }
}

// If q is float32, results have the same bits as if the stored keys and values were converted to float32 first. This holds for one query and for many.
TEST(CpuKeyStorage, TheBitsAreThoseOfTheSameValuesInFloat32) {
  for (const std::uint64_t seed : seeds_of_kernels(0, 150)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_case(random, DType::f32, seed % 10 == 0 ? draw_long_sizes(random) : draw_block_sizes(random));
    draw_key_storage(random, c);
    const Tensor k = Tensor::copy_of(values_of(c.k, c.k_scale), DType::f32), v = Tensor::copy_of(values_of(c.v, c.v_scale), DType::f32);
    for_each_instruction_set(seed, [&] {
      const AttentionOutputs stored = c.make_outputs(), plain = c.make_outputs();
      c.forward(stored);
      sdpa_forward({.q = c.q, .k = k, .v = v, .out = plain.out, .lse = plain.lse}, c.options);
      EXPECT_TRUE(same_bits(stored.out, plain.out));
      EXPECT_TRUE(same_bits(stored.lse, plain.lse));
    });
    if (HasFailure()) return;
  }
}

// Tests sizes for which the kernels have separate loops: 4, 8 and 12 query rows for each key/value head, as in decoding, and heads of the usual widths.
TEST(CpuKeyStorage, FewQueriesHaveTheBitsOfTheirRowsInAPrefillAndOfFloat32) {
  for (const DType storage : {DType::f32, DType::bf16, DType::f16, DType::i8}) {
    for (const std::int64_t width : {16, 64, 80, 128, 160}) {
      for (const std::int64_t keys : {1, 47, 64, 300, 512, 600}) {
        if (emulated() && keys > 64) continue;
        SCOPED_TRACE(std::string(info(storage).name) + ", " + std::to_string(width) + " wide, " + std::to_string(keys) + " keys");
        Random random(static_cast<std::uint64_t>(width + keys));
        const std::int64_t queries = 7;
        const Shape cache{1, 2, keys, width};
        const double magnitude = storage == DType::i8 ? 127 : 1;
        const Tensor q = random.tensor(DType::f32, {1, 8, queries, width}), k = random.tensor(storage, cache, -magnitude, magnitude),
                     v = random.tensor(storage, cache, -magnitude, magnitude);
        const Tensor scale = random.tensor(DType::f32, {1, 2, keys}, 0.001, 0.01);
        const ConstTensorView scales = storage == DType::i8 ? ConstTensorView(scale) : ConstTensorView();
        const Tensor wide_k = Tensor::copy_of(values_of(k, scales), DType::f32), wide_v = Tensor::copy_of(values_of(v, scales), DType::f32);
        for_each_instruction_set(DType::f32, [&] {
          Tensor all(DType::f32, q.shape()), plain(DType::f32, q.shape());
          sdpa_forward({.q = q, .k = wide_k, .v = wide_v, .out = plain});
          sdpa_forward({.q = q, .k = k, .v = v, .out = all, .k_scale = scales, .v_scale = scales});
          EXPECT_TRUE(same_bits(all, plain));
          for (const std::int64_t few : {1, 2, 3}) {
            Tensor out(DType::f32, {1, 8, few, width});
            for (std::int64_t t = 0; t + few <= queries; ++t) {
              sdpa_forward({.q = q.view().slice(-2, t, t + few), .k = k, .v = v, .out = out, .k_scale = scales, .v_scale = scales});
              EXPECT_TRUE(same_bits(out, Tensor::copy_of(all.view().slice(-2, t, t + few)))) << few << " queries from " << t << " on";
            }
          }
        });
        if (HasFailure()) return;
      }
    }
  }
}

TEST(CpuKeyStorage, ExplainTellsWhetherKeysAndValuesAreReadAsStored) {
  struct {
    std::int64_t queries, width;
    bool stored;
  } const cases[] = {{1, 64, true}, {12, 128, true}, {13, 128, false}, {1, 20, false}};
  for (const auto& z : cases) {
    Random random(5);
    const Tensor q = random.tensor(DType::f32, {1, z.queries, z.width}), k = random.tensor(DType::f32, {1, 90, z.width});
    Tensor out(DType::f32, q.shape());
    const std::string text = explain({.q = q, .k = k, .v = k, .out = out});
    EXPECT_EQ(text.find("as they are stored") != std::string::npos, z.stored) << z.queries << " x " << z.width << "\n" << text;
  }
}

// A non-finite scale makes its key or value non-finite. This must affect the rows that attend to the key, and no other row.
TEST(CpuKeyStorage, NonFiniteScalesReachExactlyTheRowsThatAttend) {
  for (const std::int64_t queries : {1, 20}) {
    for (const double bad : {kNaN, kInfinity, -kInfinity}) {
      for (const bool of_values : {false, true}) {
        SCOPED_TRACE(std::to_string(queries) + " queries, " + std::to_string(bad) + (of_values ? " in v" : " in k"));
        Random random(3);
        AttentionCase c = case_of(random, DType::f32, {.group = 2, .queries = queries, .keys = 90, .qk_width = 20, .v_width = 16});
        c.k = c.keep(random.tensor(DType::i8, c.sizes.k(), -127, 127)), c.v = c.keep(random.tensor(DType::i8, c.sizes.v(), -127, 127));
        const TensorView k_scale = c.keep(random.tensor(DType::f32, {1, 90}, 0.001, 0.01)),
                         v_scale = c.keep(random.tensor(DType::f32, {1, 90}, 0.001, 0.01));
        c.k_scale = k_scale, c.v_scale = v_scale;
        const Tensor attend = random.tensor(DType::boolean, {2, queries, 90});
        c.options.mask.attend = attend;
        const AttentionOutputs before = c.make_outputs();
        c.forward(before);
        fill(of_values ? v_scale.slice(-1, 70, 71) : k_scale.slice(-1, 70, 71), bad);
        const AttentionOutputs expected = reference_forward(c);
        for_each_instruction_set([&] {
          const AttentionOutputs o = c.make_outputs();
          c.forward(o);
          EXPECT_TRUE(near(o.out, expected.out, 1e-4));
          EXPECT_TRUE(near(o.lse, expected.lse, 1e-4));
        });
        bool attended = false;
        for (std::int64_t row = 0; row < 2 * queries; ++row) attended |= attend.data<bool>()[row * 90 + 70];
        bool any = false;
        for (const double x : to_doubles(expected.out)) any |= !std::isfinite(x);
        EXPECT_EQ(any, attended);
      }
    }
  }
}

// With few rows the kernel reads v from the caller's tensor; with many rows it multiplies a copy in which NaN and infinities are 0. Both must give the same result
// for the rows that attend to non-finite values.
TEST(CpuKeyStorage, NonFiniteValuesHaveTheSameEffectInFewAndInManyRows) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const DType storage = random.pick({DType::f64, DType::f32, DType::bf16, DType::f16, DType::i8}), dtype = storage == DType::f64 ? storage : DType::f32;
    const bool integers = storage == DType::i8;
    const std::int64_t keys = random.pick<std::int64_t>({40, 520, 1100}), width = random.pick<std::int64_t>({16, 64, 128}), queries = 24;
    const Tensor q = random.tensor(dtype, {1, queries, 32}), k = random.tensor(storage, {1, keys, 32}, integers ? -127 : -1, integers ? 127 : 1);
    Tensor v = random.tensor(storage, {1, keys, width}, integers ? -127 : -1, integers ? 127 : 1), scale = random.tensor(DType::f32, {1, keys}, 0.001, 0.01);
    for (std::int64_t i = random.integer(1, 3); i > 0; --i) {
      const std::int64_t s = random.integer(0, keys - 1), d = random.integer(0, width - 1);
      const double bad = random.pick({kNaN, kInfinity, -kInfinity});
      fill(integers ? scale.view().slice(1, s, s + 1) : v.view().slice(1, s, s + 1).slice(2, d, d + 1), bad);
    }
    const Tensor attend = random.tensor(DType::boolean, {queries, keys});
    const ConstTensorView scales = integers ? ConstTensorView(scale) : ConstTensorView();
    for_each_instruction_set(seed, [&] {
      Tensor all(dtype, {1, queries, width});
      sdpa_forward({.q = q, .k = k, .v = v, .out = all, .k_scale = scales, .v_scale = scales}, {.mask = {.attend = attend}});
      for (std::int64_t t = 0; t < queries;) {
        const std::int64_t last = std::min(queries, t + random.integer(1, 6));
        Tensor few(dtype, {1, last - t, width});
        sdpa_forward({.q = q.view().slice(1, t, last), .k = k, .v = v, .out = few, .k_scale = scales, .v_scale = scales},
                     {.mask = {.attend = attend.view().slice(0, t, last)}});
        EXPECT_TRUE(near(few, all.view().slice(1, t, last), 0));
        t = last;
      }
    });
    if (HasFailure()) return;
  }
}

TEST(CpuKeyStorage, AMaskedKeyWithANaNScaleChangesNothing) {
  Random random(4);
  const Tensor q = random.tensor(DType::f32, {4, 9, 64}), k = random.tensor(DType::i8, {2, 130, 64}, -127, 127),
               v = random.tensor(DType::i8, {2, 130, 64}, -127, 127);
  const Tensor scale = random.tensor(DType::f32, {2, 130}, 0.001, 0.01);
  Tensor damaged = Tensor::copy_of(scale);
  fill(damaged.view().slice(-1, 100, 130), kNaN);
  const Tensor lengths = Tensor::of<std::int32_t>({}, {100});
  for_each_instruction_set([&] {
    Tensor clean(DType::f32, q.shape()), out(DType::f32, q.shape());
    const SdpaOptions options{.mask = {.key_lengths = lengths}};
    sdpa_forward({.q = q, .k = k, .v = v, .out = clean, .k_scale = scale, .v_scale = scale}, options);
    sdpa_forward({.q = q, .k = k, .v = v, .out = out, .k_scale = damaged, .v_scale = damaged}, options);
    EXPECT_TRUE(same_bits(out, clean));
  });
}

// Quantising random k and v to int8 changes each element by at most 1/254 of the row's largest magnitude, so the results must be near those of float32.
TEST(CpuKeyStorage, AnInt8CacheGivesResultsNearThoseOfFloat32) {
  Random random(5);
  const Tensor q = random.tensor(DType::f32, {8, 3, 64}), k = random.tensor(DType::f32, {2, 200, 64}),
               v = random.tensor(DType::f32, {2, 200, 64});
  Tensor k8(DType::i8, k.shape()), v8(DType::i8, v.shape()), k_scale(DType::f32, {2, 200}), v_scale(DType::f32, {2, 200});
  quantize_rows(k, k8, k_scale), quantize_rows(v, v8, v_scale);
  Tensor exact(DType::f32, q.shape()), out(DType::f32, q.shape());
  sdpa_forward({.q = q, .k = k, .v = v, .out = exact});
  sdpa_forward({.q = q, .k = k8, .v = v8, .out = out, .k_scale = k_scale, .v_scale = v_scale});
  EXPECT_TRUE(near(out, exact, 0.01));
}

}  // namespace
}  // namespace polyhead::test
