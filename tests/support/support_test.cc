#include <gtest/gtest-spi.h>

#include "core/overlap.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::test {
namespace {

TEST(StridedTensor, ElementsAreSeparateAndPaddingIsGuarded) {
  bool permuted = false, backwards = false, padded = false;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const StridedTensor tensor = random.strided(DType::f32, {random.integer(1, 3), random.integer(1, 4), random.integer(1, 3)});
    EXPECT_FALSE(overlaps_itself(tensor));
    EXPECT_TRUE(tensor.padding_is_intact());
    for (const double x : to_doubles(tensor)) EXPECT_TRUE(-1 <= x && x < 1);
    permuted |= std::abs(tensor.view().stride(0)) < std::abs(tensor.view().stride(2));
    backwards |= tensor.view().stride(1) < 0;
    padded |= !tensor.view().is_contiguous();
  }
  EXPECT_TRUE(permuted && backwards && padded);
}

TEST(StridedTensor, WriteBesideTheViewIsFound) {
  const StridedTensor tensor = Random(1).empty_strided(DType::f64, {2, 3});
  const auto* first = byte_span(tensor.view()).last;
  EXPECT_TRUE(tensor.padding_is_intact());
  const_cast<char*>(first)[0] = 0;
  EXPECT_FALSE(tensor.padding_is_intact());
}

// Changes every byte of the memory of random layouts, one at a time. padding_is_intact() must report a change of a byte between the elements, and no other change.
TEST(StridedTensor, EachByteBesideTheViewIsGuarded) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Shape shape;
    for (std::int64_t rank = random.integer(0, 4); rank > 0; --rank) shape.push_back(random.pick<std::int64_t>({0, 1, 1, 2, 3, 4}));
    const DType dtype = random.pick({DType::u8, DType::bf16, DType::f32, DType::f64});
    const StridedTensor tensor = random.empty_strided(dtype, shape);
    const auto size = static_cast<std::int64_t>(info(dtype).size);
    auto* const memory = const_cast<std::uint8_t*>(tensor.memory().data<std::uint8_t>());
    std::vector<bool> inside(static_cast<std::size_t>(tensor.memory().numel()));
    for_each_offset<1>(shape, {tensor.view().strides()}, [&](const auto& at) {
      const std::int64_t first = static_cast<const std::uint8_t*>(tensor.view().data()) - memory + at[0] * size;
      for (std::int64_t i = first; i < first + size; ++i) inside[static_cast<std::size_t>(i)] = true;
    });
    EXPECT_TRUE(tensor.padding_is_intact());
    for (std::size_t i = 0; i < inside.size(); ++i) {
      memory[i] ^= 1;
      EXPECT_EQ(tensor.padding_is_intact(), inside[i]) << "byte " << i;
      memory[i] ^= 1;
    }
    if (HasFailure()) return;
  }
}

TEST(StridedTensor, GapsOfALargeTensorAreBounded) {
  bool permuted = false, backwards = false, columns_apart = false;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const StridedTensor tensor = Random(seed).empty_strided(DType::i8, {3, 2, 50, 61});
    EXPECT_LE(tensor.memory().numel(), 4 * 3 * 2 * 50 * 61 + 16);
    EXPECT_FALSE(overlaps_itself(tensor));
    const TensorView& view = tensor.view();
    permuted |= std::abs(view.stride(0)) < std::abs(view.stride(3));
    backwards |= view.stride(1) < 0;
    columns_apart |= std::abs(view.stride(3)) == 2;
  }
  EXPECT_TRUE(permuted && backwards && columns_apart);
}

TEST(StridedTensor, UnfilledMemoryIsNaN) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const StridedTensor tensor = Random(2).empty_strided(dtype, {4});
    for (const double x : to_doubles(tensor)) EXPECT_TRUE(std::isnan(x));
  }
}

TEST(Near, FindsOneWrongElementAndSaysWhere) {
  const Tensor expected = Random(3).tensor(DType::f32, {2, 3});
  Tensor actual = expected;
  EXPECT_TRUE(near(actual, expected, 0));
  actual.data<float>()[5] += 0.5f;
  const testing::AssertionResult result = near(actual, expected, 0.25);
  EXPECT_FALSE(result);
  EXPECT_NE(std::string(result.message()).find("[1,2]"), std::string::npos) << result.message();
  EXPECT_TRUE(near(actual, expected, 0.75));
  EXPECT_FALSE(same_bits(actual, expected));
}

TEST(Near, NaNAndInfinityMustAgree) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const Tensor special = Tensor::of<double>({3}, {infinity, -infinity, nan});
  EXPECT_TRUE(near(special, special, 0));
  EXPECT_FALSE(near(Tensor::of<double>({3}, {infinity, infinity, nan}), special, 1e300));
  EXPECT_FALSE(near(Tensor::of<double>({3}, {infinity, -infinity, 0}), special, 1e300));
  EXPECT_FALSE(near(Tensor::of<double>({3}, {1, -infinity, nan}), special, 1e300));
  EXPECT_FALSE(near(Tensor::of<double>({3, 1}, {infinity, -infinity, nan}), special, 1e300));
}

TEST(Near, RelativeToleranceIsAShareOfTheLargest) {
  const Tensor expected = Tensor::of<double>({2}, {100, 1});
  EXPECT_TRUE(near_relative(Tensor::of<double>({2}, {100, 1.9}), expected, 0.01));
  EXPECT_FALSE(near_relative(Tensor::of<double>({2}, {100, 2.1}), expected, 0.01));
}

TEST(CentralDifferences, OfAProduct) {
  Tensor x = Tensor::of<double>({2}, {3, -2});
  const auto loss = [&] { return x.data<double>()[0] * x.data<double>()[0] * x.data<double>()[1]; };
  EXPECT_TRUE(near(central_differences(loss, x), Tensor::of<double>({2}, {-12, 9}), 1e-8));
  EXPECT_TRUE(same_bits(x, Tensor::of<double>({2}, {3, -2})));
}

TEST(CentralDifferences, WrongGradientIsReported) {
  Tensor x = Tensor::of<double>({2}, {3, -2});
  const Tensor right = Tensor::of<double>({2}, {-12, 9}), wrong = Tensor::of<double>({2}, {-12, 9.0001});
  const auto loss = [&] { return x.data<double>()[0] * x.data<double>()[0] * x.data<double>()[1]; };
  expect_gradients(loss, {{"x", x, right}});
  testing::TestPartResultArray failures;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
    expect_gradients(loss, {{"x", x, wrong}});
  }
  ASSERT_EQ(failures.size(), 1);
  EXPECT_NE(std::string(failures.GetTestPartResult(0).message()).find("gradient of x"), std::string::npos);
}

}  // namespace
}  // namespace polyhead::test
