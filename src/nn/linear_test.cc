#include "polyhead/nn/linear.h"

#include "core/index.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using test::same_bits;
using test::StridedTensor;

TEST(Linear, IsTheFormula) {
  const Linear linear(Tensor::of<float>({2, 3}, {1, 2, 3, 10, 20, 30}), Tensor::of<float>({2}, {0.5f, -0.5f}));
  Tensor y(DType::f32, {2, 2});
  linear.forward(during_call(Tensor::of<float>({2, 3}, {1, 0, 0, 1, 1, 1})), y);
  EXPECT_TRUE(same_bits(y, Tensor::of<float>({2, 2}, {1.5f, 9.5f, 6.5f, 59.5f})));
}

TEST(Linear, WithoutBias) {
  const Linear linear(Tensor::of<float>({1, 2}, {1, 2}), {});
  Tensor y(DType::f32, {1});
  linear.forward(during_call(Tensor::of<float>({2}, {3, 4})), y);
  EXPECT_EQ(y.data<float>()[0], 11);
  EXPECT_EQ(parameters(linear).size(), 1u);
}

TEST(Linear, InitialisedAsTorch) {
  const Linear linear({.in_width = 64, .out_width = 500, .seed = 7});
  const double bound = 1.0 / 8;
  for (const auto& [name, tensor] : parameters(linear)) {
    SCOPED_TRACE(name);
    double sum = 0, squares = 0;
    for (const double x : test::to_doubles(*tensor)) {
      EXPECT_LE(std::abs(x), bound);
      sum += x;
      squares += x * x;
    }
    const auto count = static_cast<double>(tensor->numel());
    // A uniform distribution on [-bound, bound] has mean 0 and variance bound^2 / 3. The tolerance is four standard errors.
    EXPECT_LT(std::abs(sum / count), 4 * bound / std::sqrt(3 * count));
    EXPECT_NEAR(squares / count, bound * bound / 3, 4 * bound * bound * std::sqrt(4.0 / 45 / count));
  }
  EXPECT_TRUE(same_bits(linear.weight, Linear({.in_width = 64, .out_width = 500, .seed = 7}).weight));
  EXPECT_FALSE(same_bits(linear.weight, Linear({.in_width = 64, .out_width = 500, .seed = 8}).weight));
}

// Returns a linear layer with random parameters, in float64.
Linear random_linear(Random& random, std::int64_t in, std::int64_t out, bool bias) {
  return {random.tensor(DType::f64, {out, in}), bias ? random.tensor(DType::f64, {out}) : Tensor()};
}

TEST(Linear, GradientsAreCentralDifferences) {
  for (const Shape& leading : {Shape{}, Shape{1}, Shape{5}, Shape{2, 3}, Shape{2, 1, 3}, Shape{0}, Shape{2, 0}}) {
    for (const auto& [in, out] : {std::pair{3, 4}, std::pair{1, 1}, std::pair{0, 2}, std::pair{2, 0}}) {
      for (const bool bias : {true, false}) {
        SCOPED_TRACE(to_string(leading) + " " + std::to_string(in) + " -> " + std::to_string(out) + (bias ? " with bias" : ""));
        Random random(static_cast<std::uint64_t>(in * 10 + out));
        Linear linear = random_linear(random, in, out, bias);
        const Shape x_shape = appended(leading, {in}), y_shape = appended(leading, {out});
        const StridedTensor x = random.strided(DType::f64, x_shape), d_y = random.strided(DType::f64, y_shape);
        const StridedTensor y = random.empty_strided(DType::f64, y_shape), d_x = random.empty_strided(DType::f64, x_shape);
        Linear grads = zeros_like(linear);
        linear.backward(x, d_y, {.x = d_x, .parameters = &grads});
        auto leaves = test::parameter_leaves(linear, grads);
        leaves.push_back({"x", x, d_x});
        test::expect_gradients(
            [&] {
              linear.forward(x, y);
              return test::weighted_sum(y, d_y);
            },
            leaves);
        EXPECT_TRUE(d_x.padding_is_intact() && y.padding_is_intact());
      }
    }
  }
}

TEST(Linear, BackwardWritesOnlyTheRequestedGradients) {
  Random random(3);
  const Linear linear = random_linear(random, 3, 2, true);
  const Tensor x = random.tensor(DType::f64, {4, 3}), d_y = random.tensor(DType::f64, {4, 2}), start = random.tensor(DType::f64, {4, 3});
  Tensor d_x(DType::f64, {4, 3}), added = start;
  Linear grads = zeros_like(linear), only_grads = random_linear(random, 3, 2, true);
  linear.backward(x, d_y, {.x = d_x, .parameters = &grads});
  linear.backward({}, d_y, {.x = added, .x_write = Write::add});  // x may be absent, because only the gradients of the parameters need x
  linear.backward(x, d_y, {.parameters = &only_grads});              // replaces the gradients of the first backward pass
  for (std::int64_t i = 0; i < 12; ++i) EXPECT_DOUBLE_EQ(added.data<double>()[i], start.data<double>()[i] + d_x.data<double>()[i]);
  EXPECT_TRUE(same_bits(only_grads.weight, grads.weight));
  EXPECT_TRUE(same_bits(only_grads.bias, grads.bias));
}

// NaN in a row of x reaches the weight's gradient even if d_y of that row is 0, because 0 x NaN is NaN. Attention therefore replaces the rows of masked
// positions before it calls Linear::backward().
TEST(Linear, ANonFiniteRowReachesTheGradientOfTheWeightEvenIfItsOwnGradientIsZero) {
  const Linear linear({.in_width = 2, .out_width = 2, .seed = 1});
  const Tensor x = Tensor::of<float>({2, 2}, {1, 2, std::nanf(""), 3}), d_y = Tensor::of<float>({2, 2}, {1, 1, 0, 0});
  Linear grads = zeros_like(linear);
  linear.backward(x, d_y, {.parameters = &grads});
  const std::vector<double> d_weight = test::to_doubles(grads.weight);
  EXPECT_TRUE(std::isnan(d_weight[0]) && std::isnan(d_weight[2]));
  EXPECT_EQ(d_weight[1], 2);
}

TEST(Linear, SixteenBitStorageRoundsOnce) {
  Random random(4);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor weight = random.tensor(dtype, {5, 70}), bias = random.tensor(dtype, {5}), x = random.tensor(dtype, {3, 70});
    Tensor wide(DType::f32, {3, 5}), narrow(dtype, {3, 5});
    Linear(Tensor::copy_of(weight, DType::f32), Tensor::copy_of(bias, DType::f32))
        .forward(during_call(Tensor::copy_of(x, DType::f32)), wide);
    Linear(weight, bias).forward(x, narrow);
    EXPECT_TRUE(same_bits(narrow, Tensor::copy_of(wide, dtype)));
  }
}

TEST(Linear, WidthsOfZeroAreRefused) {
  EXPECT_EQ(error_message([] { Linear linear{LinearConfig{.seed = 1}}; }), "Linear: in_width is 0 and out_width 0; both must be at least 1");
  EXPECT_NE(error_message([] { Linear linear({.in_width = 3, .seed = 1}); }), "");
  static_assert(!std::is_default_constructible_v<LinearConfig>);  // LinearConfig has no default seed
}

TEST(Linear, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  const Linear linear({.in_width = 3, .out_width = 2, .seed = 1});
  Tensor x(DType::f32, {4, 3}), y(DType::f32, {4, 2});
  EXPECT_EQ(error_message([&] { linear.forward(y, y); }), "Linear.forward: x is [4,2]; its last extent must be in_width = 3");
  EXPECT_EQ(error_message([&] { linear.forward(x, x); }), "Linear.forward: y is [4,3]; it must be [4,2]");
  EXPECT_EQ(error_message([&] {
              linear.forward(during_call(Tensor(DType::f64, {4, 3})), y);
            }),
            "Linear.forward: x is float64; it must be float32, as the other tensors");
  EXPECT_EQ(error_message([&] { linear.forward({}, y); }), "Linear.forward: x is missing");
  EXPECT_EQ(error_message([&] { linear.forward(x.view().slice(0, 0, 4).select(0, 0).select(0, 0), y); }),
            "Linear.forward: x is []; its last extent must be in_width = 3");
  EXPECT_EQ(error_message([&] { Linear().forward(x, y); }), "Linear.forward: the weight must be a floating tensor [out,in]; there is none");
  EXPECT_EQ(error_message([&] { Linear(Tensor(DType::f32, {2}), {}); }),
            "Linear: the weight must be a floating tensor [out,in]; it is float32 [2]");
  EXPECT_EQ(error_message([&] { Linear(Tensor(DType::f32, {2, 3}), Tensor(DType::f32, {3})); }), "Linear: bias is [3]; it must be [2]");
  EXPECT_EQ(error_message([&] { Linear({.in_width = -1, .out_width = 2, .seed = 1}); }),
            "Linear: in_width is -1 and out_width 2; both must be at least 1");
  EXPECT_EQ(error_message([&] { Linear({.in_width = 1, .out_width = 2, .dtype = DType::i32, .seed = 1}); }),
            "Linear: the parameters must be floating, not int32");
  EXPECT_EQ(error_message([&] { linear.backward(x, x, {}); }),
            "Linear.backward: d_y is [4,3]; its last extent must be out_width = 2");
  Linear wrong({.in_width = 3, .out_width = 2, .bias = false, .seed = 1});
  EXPECT_EQ(error_message([&] { linear.backward(x, y, {.parameters = &wrong}); }), "Linear.backward: gradients.parameters->bias is missing");
}

TEST(Linear, OutputsMayNotOverlapInputs) {
  Tensor packed(DType::f32, {4, 5});
  const TensorView x = packed.view().slice(1, 0, 3), beside = packed.view().slice(1, 3, 5), over = packed.view().slice(1, 2, 4);
  Linear linear({.in_width = 3, .out_width = 2, .seed = 1});
  EXPECT_EQ(error_message([&] { linear.forward(x, beside); }), "");
  EXPECT_EQ(error_message([&] { linear.forward(x, over); }), "Linear.forward: y overlaps x; outputs need memory of their own");
  Tensor small(DType::f32, {1, 2});
  EXPECT_EQ(error_message([&] {
              linear.forward(x, small.view().expand({4, 2}));
            }),
            "Linear.forward: elements of y share memory: shape [4,2], strides [0,1]");
  EXPECT_EQ(error_message([&] { linear.backward(x, beside, {.x = packed.view().slice(1, 1, 4)}); }),
            "Linear.backward: d_x overlaps x; outputs need memory of their own");
  EXPECT_EQ(error_message([&] { linear.backward(x, beside, {.parameters = &linear}); }),
            "Linear.backward: gradients.parameters->weight overlaps weight; outputs need memory of their own");
}

TEST(Linear, GradientsOfAnotherStructureAreRefusedBeforeAnythingIsWritten) {
  const Linear linear({.in_width = 3, .out_width = 2, .bias = false, .seed = 1});
  const Tensor x(DType::f32, {4, 3}), d_y(DType::f32, {4, 2});
  Linear grads({.in_width = 3, .out_width = 2, .seed = 1});
  const Linear before = grads;
  EXPECT_EQ(error_message([&] { linear.backward(x, d_y, {.parameters = &grads}); }), "Linear.backward: gradients.parameters has bias, which the module does not have");
  EXPECT_TRUE(same_bits(grads.weight, before.weight));
}

}  // namespace
}  // namespace polyhead::nn
