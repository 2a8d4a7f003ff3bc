// Compares maps that the kernel writes directly to the caller's tensor, for every dtype and stride of the tensor, with the reference.
#include <gmock/gmock.h>

#include "polyhead/maps.h"
#include "support/kernel_case.h"
#include "support/seeds.h"

namespace polyhead::test {
namespace {

constexpr MapValue kValues[] = {MapValue::scaled_score, MapValue::capped_score, MapValue::score, MapValue::probability, MapValue::dropped};

// Draws sizes near multiples of 12 rows (a strip) and 64 keys (a panel).
AttentionSizes draw_map_sizes(Random& random) {
  AttentionSizes z = draw_sizes(random);
  z.queries = random.pick<std::int64_t>({1, 5, 11, 12, 13, 25});
  z.keys = random.pick<std::int64_t>({1, 15, 16, 17, 63, 64, 65, 130});
  return z;
}

TEST(CpuMaps, AreWrittenInEveryDTypeAndStride) {
  for (const std::uint64_t seed : seeds_of_kernels(0, 200)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_case(random, kDTypes[seed % 5], draw_map_sizes(random));
    const MapsInput input{.q = c.q, .k = c.k};
    const Tolerances tolerance(c);
    const MapValue value = random.pick({kValues[0], kValues[1], kValues[2], kValues[3], kValues[4]});
    const Tensor expected = reference_map(c, input, value);
    const double largest = largest_magnitude(expected);
    const double kept = kept_factor(c.options.dropout);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      SCOPED_TRACE(info(dtype).name);
      for_each_instruction_set(seed, [&] {
        const StridedTensor out = random.empty_strided(dtype, c.sizes.pairs());
        attention_map(input, out, c.options, value);
        EXPECT_TRUE(near(out, expected, tolerance.lse * kept + (dtype == DType::f32 ? 0x1p-24 : storage_rounding(dtype)) * largest));
        EXPECT_TRUE(out.padding_is_intact());
      });
    }
    if (HasFailure()) return;
  }
}

// The test adds a bias of 1e4 to scores that are exact in float32. With a stored float32 lse, attention weights would be off by 1e-3. A bias of 1e38 is so
// large that the differences of the scores are lost in rounding.
TEST(CpuMaps, OfScoresOfAnyMagnitudeAreExact) {
  for (const double level : {0.0, 1e4, -1e4, 1e38, -1e38}) {
    SCOPED_TRACE(level);
    Random random(3);
    AttentionCase c = case_of(random, DType::f32, {.queries = 14, .keys = 130, .qk_width = 1, .v_width = 1});
    Tensor q(DType::f32, {1, 14, 1}), k(DType::f32, {1, 130, 1}), bias(DType::f32, {1});
    for (std::int64_t t = 0; t < 14; ++t) q.data<float>()[t] = static_cast<float>(t * 32);
    for (std::int64_t s = 0; s < 130; ++s) k.data<float>()[s] = static_cast<float>(s % 3 - 1) / 16;
    fill(bias, level);
    c.q = q, c.k = k, c.options.bias = bias, c.options.scale = 1;
    const MapsInput input{.q = c.q, .k = c.k};
    Tensor expected = reference_map(c, input, MapValue::probability);
    if (std::abs(level) > 1e30) fill(expected, 1.0 / 130);
    for_each_instruction_set([&] {
      Tensor map(DType::f32, c.sizes.pairs());
      attention_map(input, map, c.options);
      EXPECT_TRUE(near(map, expected, 1e-6));
    });
  }
}

TEST(CpuMaps, EmptyRowsAndMaskedKeysThatAreNaNGiveZeros) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    SCOPED_TRACE(info(dtype).name);
    Random random(7);
    AttentionCase c = case_of(random, dtype, {.lead = {2}, .group = 2, .queries = 15, .keys = 70, .qk_width = 9, .v_width = 3});
    const TensorView k = c.keep(Tensor::copy_of(c.k));
    fill(k.slice(-2, 33, 34), kNaN);
    c.k = k;
    Tensor attend = random.tensor(DType::boolean, {15, 70}), bias(dtype, {15, 1});
    fill(attend.view().slice(0, 4, 5), 0);   // row 4 attends to no key
    fill(bias.view().slice(0, 9, 10), -kInfinity);  // all scores of row 9 are -infinity
    attend.data<bool>()[9 * 70 + 33] = false;
    c.options.mask.attend = attend, c.options.bias = bias, c.options.dropout = {.p = 0.4, .seed = 5};
    const MapsInput input{.q = c.q, .k = c.k};
    for (const MapValue value : kValues) {
      SCOPED_TRACE(static_cast<int>(value));
      const Tensor expected = reference_map(c, input, value);
      for_each_instruction_set([&] {
        Tensor map(dtype, c.sizes.pairs());
        attention_map(input, map, c.options, value);
        EXPECT_TRUE(near(map, expected, dtype == DType::bf16 ? 0.05 : 1e-5));
        for (const std::int64_t t : {4, 9}) {
          if (value < MapValue::probability) continue;
          for (const double x : to_doubles(ConstTensorView(map).select(-2, t))) EXPECT_EQ(x, 0) << t;
        }
      });
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace polyhead::test
