#include "nn/initialise.h"

#include "polyhead/nn/encoder_layer.h"
#include "polyhead/nn/initialisation.h"

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
  for (const int count : histogram) EXPECT_NEAR(count, 2500, 4 * std::sqrt(20000 * 7.0 / 64));  // four standard errors of a binomial count
}

TEST(Initialiser, XavierBoundIsOfBothWidths) {
  Tensor weight(DType::f64, {30, 66});
  Initialiser(4).xavier_uniform(weight);
  const double bound = std::sqrt(6.0 / 96), largest = test::largest_magnitude(weight);
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.99 * bound);  // of 1980 values the largest is below that with probability 2e-9
  Tensor none(DType::f64, {0, 0});
  Initialiser(4).xavier_uniform(none);
}

TEST(InitialiseNormal, DrawsMatricesAndClearsBiases) {
  EncoderLayer layer({.width = 64, .heads = 4, .seed = 1});
  initialise_normal(layer, {.deviation = 0.5, .residual_layers = 8, .seed = 2});
  for (const auto& [name, tensor] : parameters(layer)) {
    double squares = 0;
    for (const double value : test::to_doubles(*tensor)) squares += value * value;
    const auto count = static_cast<double>(tensor->numel());
    const double expected = name.ends_with("bias") ? 0 : name.ends_with("norm.weight") ? 1 : name.ends_with("output.weight") ? 0.125 : 0.5;
    EXPECT_NEAR(std::sqrt(squares / count), expected, 4 * expected / std::sqrt(2 * count)) << name;  // four standard errors
  }
  EncoderLayer again({.width = 64, .heads = 4, .seed = 3});
  initialise_normal(again, {.deviation = 0.5, .residual_layers = 8, .seed = 2});
  EXPECT_TRUE(test::same_bits(again.attention.q.weight, layer.attention.q.weight));
  EXPECT_FALSE(test::same_bits(layer.attention.q.weight, layer.attention.k.weight));
  MultiHeadAttention gated({.query_width = 4, .gate = Gate::sigmoid});
  initialise_normal(gated, {.seed = 2});
  for (const double value : test::to_doubles(gated.gate.bias)) EXPECT_EQ(value, 1);
  EXPECT_EQ(test::error_message([&] { initialise_normal(layer, {}); }), "initialise_normal: it needs a seed");
  EXPECT_EQ(test::error_message([&] { initialise_normal(layer, {.deviation = -1, .seed = 1}); }),
            "initialise_normal: deviation is -1 and residual_layers 0; neither may be negative");
}

}  // namespace
}  // namespace polyhead::nn
