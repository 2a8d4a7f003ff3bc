#include "polyhead/models/encoder_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/test_error_matcher.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::models {
namespace {

using test::Random;
using testing::HasSubstr;

// Initialised norms and biases are ones and zeros, which would hide a gradient that is lost.
template <class Module>
void scramble(Module& module, Random& random) {
  module.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, 0.2, 1.0); });
}

EncoderLayerConfig tiny(nn::Activation activation = nn::Activation::gelu) {
  return {.width = 6, .heads = 2, .hidden_width = 5, .activation = activation, .epsilon = 1e-3, .dtype = DType::f64};
}

TEST(EncoderLayer, GradientsAgreeWithCentralDifferences) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    Random random(seed);
    EncoderLayer layer(tiny(random.pick({nn::Activation::gelu, nn::Activation::gelu_tanh})));
    layer.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -1, 1); });
    const Shape shape{2, 3, 6};
    Tensor x = random.tensor(DType::f64, shape), d_y = random.tensor(DType::f64, shape);
    const Tensor attend_keys = Tensor::of<bool>({2, 3}, {true, true, true, true, true, false});
    const nn::AttentionOptions options{.mask = {.attend_keys = attend_keys}};
    Tensor y(DType::f64, shape), d_x(DType::f64, shape);
    EncoderLayer::Saved saved;
    layer.forward(x, y, options, &saved);
    EncoderLayer grads = nn::zeros_like(layer);
    layer.backward(saved, d_y, {.x = d_x, .parameters = &grads});
    const auto loss = [&] {
      layer.forward(x, y, options);
      return test::weighted_sum(y, d_y);
    };
    auto leaves = test::parameter_leaves(layer, grads);
    EXPECT_EQ(leaves.size(), 16u);
    leaves.push_back({"x", x, d_x});
    test::expect_gradients(loss, leaves);
  }
}

TEST(EncoderLayer, GradientsOfTheInputDoNotNeedThoseOfTheParameters) {
  Random random(4);
  EncoderLayer layer(tiny());
  scramble(layer, random);
  const Tensor x = random.tensor(DType::f64, {3, 6}), d_y = random.tensor(DType::f64, {3, 6});
  Tensor y(DType::f64, {3, 6}), with(DType::f64, {3, 6}), without(DType::f64, {3, 6});
  EncoderLayer::Saved saved;
  layer.forward(x, y, {}, &saved);
  EncoderLayer grads = nn::zeros_like(layer);
  layer.backward(saved, d_y, {.x = with, .parameters = &grads});
  layer.backward(saved, d_y, {.x = without});
  EXPECT_TRUE(test::same_bits(with, without));
}

TEST(EncoderLayer, TheLastThingItDoesIsToNormalise) {
  Random random(5);
  EncoderLayer layer({.width = 12, .heads = 3, .seed = 5});
  Tensor y(DType::f32, {4, 12});
  layer.forward(during_call(random.tensor(DType::f32, {4, 12}, -3, 3)), y);
  for (std::int64_t t = 0; t < 4; ++t) {
    double sum = 0, squares = 0;
    for (const double value : test::to_doubles(y.view().select(0, t))) {
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(sum, 0, 1e-5);
    EXPECT_NEAR(squares / 12, 1, 1e-5);
  }
}

TEST(EncoderLayer, WithoutPositionsTheOrderOfTokensDoesNotMatter) {
  Random random(6);
  EncoderLayer layer(tiny());
  const Tensor x = random.tensor(DType::f64, {5, 6});
  Tensor y(DType::f64, {5, 6}), reversed(DType::f64, {5, 6});
  layer.forward(x, y);
  layer.forward(x.view().slice(0, 0, 5, -1), reversed);
  EXPECT_TRUE(test::near(reversed.view().slice(0, 0, 5, -1), y, 1e-12));
}

TEST(EncoderLayer, ResultsDoNotDependOnStrides) {
  Random random(7);
  EncoderLayer layer(tiny());
  const Tensor x = random.tensor(DType::f64, {2, 3, 6}), d_y = random.tensor(DType::f64, {2, 3, 6});
  Tensor y(DType::f64, {2, 3, 6}), d_x(DType::f64, {2, 3, 6});
  EncoderLayer::Saved saved;
  layer.forward(x, y, {}, &saved);
  layer.backward(saved, d_y, {.x = d_x});
  const auto strided_x = random.strided_copy(x), strided_d_y = random.strided_copy(d_y);
  auto strided_y = random.empty_strided(DType::f64, {2, 3, 6}), strided_d_x = random.empty_strided(DType::f64, {2, 3, 6});
  layer.forward(strided_x, strided_y, {}, &saved);
  layer.backward(saved, strided_d_y, {.x = strided_d_x});
  EXPECT_TRUE(test::same_bits(strided_y, y));
  EXPECT_TRUE(test::same_bits(strided_d_x, d_x));
  EXPECT_TRUE(strided_y.padding_is_intact() && strided_d_x.padding_is_intact());
}

// A saved pass is computed as a whole.
TEST(EncoderLayer, EvaluationInPartsHasTheBitsOfTheWhole) {
  Random random(8);
  EncoderLayer layer({.width = 64, .heads = 4, .seed = 8});
  scramble(layer, random);
  const Tensor x = random.tensor(DType::f32, {160, 40, 64}), attend_keys = random.tensor(DType::boolean, {160, 40});
  for (const int threads : {1, 2}) {
    LimitedThreads executor(threads);
    const Workspace workspace;
    const nn::AttentionOptions options{.mask = {.attend_keys = attend_keys}, .executor = &executor, .workspace = &workspace};
    Tensor whole(DType::f32, x.shape()), parts(DType::f32, x.shape());
    EncoderLayer::Saved saved;
    layer.forward(x, whole, options, &saved);
    layer.forward(x, parts, options);
    EXPECT_TRUE(test::same_bits(parts, whole)) << threads;
  }
}

TEST(EncoderLayer, ExtentsMayBeZero) {
  EncoderLayer layer(tiny());
  for (const Shape& shape : {Shape{0, 6}, Shape{0, 3, 6}, Shape{3, 0, 6}, Shape{1, 1, 6}}) {
    Tensor x(DType::f64, shape), y(DType::f64, shape), d_x(DType::f64, shape);
    EncoderLayer::Saved saved;
    EncoderLayer grads = nn::zeros_like(layer);
    layer.forward(x, y, {}, &saved);
    layer.backward(saved, y, {.x = d_x, .parameters = &grads});
    EXPECT_EQ(d_x.shape(), shape);
  }
}

TEST(EncoderLayer, RefusesTensorsThatDoNotFit) {
  EncoderLayer layer(tiny());
  Tensor x(DType::f64, {3, 6}), y(DType::f64, {4, 6}), narrow(DType::f32, {3, 6});
  EXPECT_ERROR(layer.forward(x, y), invalid_argument, HasSubstr("y is [4,6]; it must be [3,6]"));
  EXPECT_ERROR(layer.forward(x, narrow), invalid_argument, HasSubstr("float32"));
  EXPECT_ERROR(layer.forward(x, x), invalid_argument, HasSubstr("overlaps"));
  EXPECT_ERROR(EncoderLayer({.width = 6, .heads = 4}), invalid_argument, HasSubstr("heads"));
  EXPECT_ERROR(EncoderLayer({.width = -1}), invalid_argument, HasSubstr("width is -1"));
  EXPECT_ERROR(EncoderLayer({.width = 6, .heads = 2, .hidden_width = -1}), invalid_argument, HasSubstr("-1"));
  EXPECT_ERROR(layer.forward(x, layer.attention.q.weight.view().slice(0, 0, 3)), invalid_argument,
               HasSubstr("y overlaps the parameter attention.q.weight"));
}

}  // namespace
}  // namespace polyhead::models
