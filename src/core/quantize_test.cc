// Tests quantize_rows(): the error bound, rounding, rows of zeros, NaN or infinity, strides, and the arguments that it refuses.
#include "polyhead/quantize.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "support/compare.h"
#include "support/random.h"

namespace polyhead::test {
namespace {

struct Quantized {
  Tensor elements, scale;
  explicit Quantized(ConstTensorView from) : elements(DType::i8, from.shape()), scale(DType::f32, from.shape().first(from.rank() - 1)) {
    quantize_rows(from, elements, scale);
  }
};

std::vector<int> integers(const Tensor& tensor) { return {tensor.data<std::int8_t>(), tensor.data<std::int8_t>() + tensor.numel()}; }

TEST(Quantize, ElementsTimesScaleAreWithinHalfAScale) {
  Random random(1);
  for (const double magnitude : {1e-38, 1e-3, 1.0, 700.0, 3e38}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      const Tensor x = random.tensor(dtype, {50, 33}, -magnitude, magnitude);
      const Quantized q(x);
      const std::vector<double> exact = to_doubles(Tensor::copy_of(x, DType::f32)), scales = to_doubles(q.scale);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        const float scale = static_cast<float>(scales[i / 33]), restored = scale * static_cast<float>(q.elements.data<std::int8_t>()[i]);
        EXPECT_LE(std::abs(static_cast<double>(restored) - exact[i]), scale * (0.5 + 0x1p-15) + 0x1p-142) << magnitude;
      }
      for (std::size_t row = 0; row < scales.size(); ++row) {
        const auto begin = exact.begin() + static_cast<std::ptrdiff_t>(33 * row);
        float largest = 0;
        for (auto value = begin; value < begin + 33; ++value) largest = std::max(largest, static_cast<float>(std::abs(*value)));
        EXPECT_EQ(static_cast<float>(scales[row]), largest / 127);
      }
    }
  }
}

TEST(Quantize, TiesGoToTheEvenInteger) {
  const Tensor x = Tensor::of<float>({1, 8}, {127, -127, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 126.4F});
  const Quantized q(x);
  EXPECT_EQ(to_doubles(q.scale)[0], 1);
  EXPECT_THAT(integers(q.elements), testing::ElementsAre(127, -127, 0, 2, 2, 0, -2, 126));
}

TEST(Quantize, RowsOfZerosAndOfTinyNumbersHaveFiniteResults) {
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  const Tensor x = Tensor::of<float>({4, 2}, {0, -0.0F, kTiny, -kTiny, 100 * kTiny, -kTiny, 190 * kTiny, 190 * kTiny});
  const Quantized q(x);
  EXPECT_THAT(to_doubles(q.scale), testing::ElementsAre(0, 0, static_cast<double>(kTiny), static_cast<double>(kTiny)));
  EXPECT_THAT(integers(q.elements), testing::ElementsAre(0, 0, 0, 0, 100, -1, 127, 127));
}

TEST(Quantize, ARowWithANonFiniteNumberIsARowOfNaN) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    const Tensor x = Tensor::of<float>({3, 3}, {1, 2, 3, 1, bad, 3, -254, 2, 0});
    const Quantized q(x);
    EXPECT_TRUE(std::isnan(to_doubles(q.scale)[1]));
    EXPECT_THAT(integers(q.elements), testing::ElementsAre(42, 85, 127, 0, 0, 0, -127, 1, 0));
  }
  const Tensor large = Tensor::of<double>({1, 1}, {1e39});
  EXPECT_TRUE(std::isnan(to_doubles(Quantized(large).scale)[0])) << "beyond float32";
}

TEST(Quantize, AnyStridesAndExtents) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    const Shape shape{random.integer(0, 3), random.integer(0, 4), random.integer(0, 9)}, rows = shape.first(2);
    const StridedTensor x = random.strided(DType::f32, shape), to = random.empty_strided(DType::i8, shape),
                        scale = random.empty_strided(DType::f32, rows);
    quantize_rows(x, to, scale);
    const Tensor packed = Tensor::copy_of(x);
    const Quantized expected(packed);
    EXPECT_TRUE(same_bits(Tensor::copy_of(to), expected.elements));
    EXPECT_TRUE(same_bits(Tensor::copy_of(scale), expected.scale));
    EXPECT_TRUE(to.padding_is_intact() && scale.padding_is_intact());
  }
}

TEST(Quantize, WhatDoesNotFitIsRefused) {
  Tensor x(DType::f32, {2, 3}), to(DType::i8, {2, 3}), scale(DType::f32, {2}), integers(DType::i32, {2, 3}), wide(DType::f32, {2, 1}),
      scalar(DType::f32, {});
  const auto message = [](ConstTensorView from, TensorView elements, TensorView scales) {
    return error_message([&] { quantize_rows(from, elements, scales); });
  };
  EXPECT_EQ(message(x, to, scale), "");
  EXPECT_EQ(message({}, to, scale), "quantize_rows: a tensor is missing");
  EXPECT_EQ(message(integers, to, scale), "quantize_rows: x is int32; it must be floating");
  EXPECT_EQ(message(scalar, to, scale), "quantize_rows: x is []; it must be [..,W]");
  EXPECT_EQ(message(x, integers, scale), "quantize_rows: out is int32 [2,3]; it must be int8 [2,3]");
  EXPECT_EQ(message(x, to, wide), "quantize_rows: scale is float32 [2,1]; it must be float32 [2]");
  EXPECT_THAT(message(x, to, x.view().select(1, 0)), testing::HasSubstr("overlap"));
}

}  // namespace
}  // namespace polyhead::test
