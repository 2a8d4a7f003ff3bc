#include "nn/initialiser.h"

#include "support/compare.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::same_bits;

TEST(Initialiser, ValuesDoNotDependOnStrides) {
  Tensor plain(DType::f32, {3, 4, 5});
  const test::StridedTensor strided = test::Random(1).empty_strided(DType::f32, {3, 4, 5});
  Initialiser(9).normal(plain, 1, 2);
  Initialiser(9).normal(strided, 1, 2);
  EXPECT_TRUE(same_bits(strided.view(), plain));
  EXPECT_TRUE(strided.padding_is_intact());
}

TEST(Initialiser, NarrowDtypesAreRoundedFloat64) {
  Tensor wide(DType::f64, {100});
  Initialiser(9).uniform(wide, -2, 3);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Tensor narrow(dtype, {100});
    Initialiser(9).uniform(narrow, -2, 3);
    EXPECT_TRUE(same_bits(narrow, Tensor::copy_of(wide, dtype)));
  }
}

TEST(Initialiser, EveryCallAndSeedHasItsOwnStream) {
  Initialiser initialiser(1), other(2), high(std::uint64_t{1} << 32 | 1);
  Tensor a(DType::f64, {8}), b(DType::f64, {8}), c(DType::f64, {8}), d(DType::f64, {8});
  initialiser.uniform(a, 0, 1);
  initialiser.uniform(b, 0, 1);
  other.uniform(c, 0, 1);
  high.uniform(d, 0, 1);
  for (const Tensor* other_stream : {&b, &c, &d}) {
    for (std::int64_t i = 0; i < 8; ++i) EXPECT_NE(a.data<double>()[i], other_stream->data<double>()[i]);
  }
  EXPECT_NE(initialiser.child_seed(), initialiser.child_seed());
}

TEST(Initialiser, UniformCoversItsRange) {
  Tensor x(DType::f64, {20000});
  Initialiser(3).uniform(x, -1, 3);
  std::array<int, 8> histogram{};
  for (const double value : test::to_doubles(x)) {
    ASSERT_TRUE(-1 <= value && value < 3);
    ++histogram[static_cast<std::size_t>((value + 1) * 2)];
  }
  for (const int count : histogram) EXPECT_NEAR(count, 2500, 4 * std::sqrt(20000 * 7.0 / 64));  // the tolerance is four standard errors of a binomial count
}

TEST(Initialiser, XavierBoundUsesBothWidths) {
  Tensor weight(DType::f64, {30, 66});
  Initialiser(4).xavier_uniform(weight);
  const double bound = std::sqrt(6.0 / 96), largest = test::largest_magnitude(weight);
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.99 * bound);  // with probability 2e-9 all of 1980 values are below 0.99 bound
  Tensor none(DType::f64, {0, 0});
  Initialiser(4).xavier_uniform(none);
}

}  // namespace
}  // namespace polyhead::nn
