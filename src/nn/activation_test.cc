#include "polyhead/nn/activation.h"

#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::near;
using test::Random;
using test::same_bits;
using test::StridedTensor;

double value(Activation activation, double x) {
  Tensor y = Tensor::of<double>({}, {x});
  activate(activation, y, y);
  return y.data<double>()[0];
}

double derivative(Activation activation, double x) {
  Tensor d_x(DType::f64, {});
  activate_backward(activation, during_call(Tensor::of<double>({}, {x})), during_call(Tensor::of<double>({}, {1})), d_x);
  return d_x.data<double>()[0];
}

TEST(Activation, KnownValues) {
  // Phi(1) and Phi(-3) are from tables of the normal distribution; the other values were computed from the definitions to 17 digits.
  EXPECT_NEAR(value(Activation::gelu, 1), 0.84134474606854293, 1e-15);
  EXPECT_NEAR(value(Activation::gelu, -3), -3 * 0.0013498980316300933, 1e-16);
  EXPECT_NEAR(value(Activation::gelu_tanh, 1), 0.84119199060827676, 1e-15);
  EXPECT_NEAR(value(Activation::sigmoid, 1), 0.73105857863000488, 1e-15);
  EXPECT_NEAR(value(Activation::silu, 1), 0.73105857863000488, 1e-15);
  EXPECT_NEAR(value(Activation::silu, -1), 0.73105857863000488 - 1, 1e-15);
  EXPECT_NEAR(value(Activation::quick_gelu, 1), 0.8457957659328212, 1e-15);
  EXPECT_NEAR(value(Activation::quick_gelu, -1), 0.8457957659328212 - 1, 1e-15);
  EXPECT_NEAR(value(Activation::tanh, 0.5), 0.46211715726000976, 1e-15);
  EXPECT_EQ(value(Activation::relu, 2.5), 2.5);
  EXPECT_EQ(value(Activation::relu, -2.5), 0);
}

TEST(Activation, LargeInputsGiveTheLimit) {
  for (const double x : {50.0, 1e10, 1e200}) {
    SCOPED_TRACE(x);
    for (const Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_tanh}) {
      EXPECT_EQ(value(activation, x), x);
      EXPECT_EQ(value(activation, -x), 0);
      EXPECT_NEAR(derivative(activation, x), 1, 1e-15);
      EXPECT_NEAR(derivative(activation, -x), 0, 1e-15);
    }
    for (const Activation activation : {Activation::silu, Activation::quick_gelu}) {
      EXPECT_EQ(value(activation, x), x);
      EXPECT_NEAR(value(activation, -x), 0, 1e-19);
      EXPECT_NEAR(derivative(activation, x), 1, 1e-15);
      EXPECT_NEAR(derivative(activation, -x), 0, 1e-19);
    }
    EXPECT_EQ(value(Activation::sigmoid, x), 1);
    EXPECT_NEAR(value(Activation::sigmoid, -x), 0, 1e-20);
    EXPECT_EQ(value(Activation::tanh, -x), -1);
    EXPECT_NEAR(derivative(Activation::sigmoid, -x), 0, 1e-20);
    EXPECT_NEAR(derivative(Activation::tanh, x), 0, 1e-20);
  }
}

TEST(Activation, NaNIsKept) {
  const double nan = std::nan("");
  for (const ActivationInfo& row : kActivations) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(std::isnan(value(row.activation, nan)));
  }
}

TEST(Activation, ReluGradientAtZeroIsZeroAsInTorch) {
  EXPECT_EQ(derivative(Activation::relu, 0), 0);
  EXPECT_EQ(derivative(Activation::relu, -1), 0);
  EXPECT_EQ(derivative(Activation::relu, 1), 1);
}

TEST(Activation, GradientsAreCentralDifferences) {
  for (const ActivationInfo& row : kActivations) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{7}, Shape{2, 3, 5}, Shape{2, 0}}) {
      SCOPED_TRACE(std::string(row.name) + " " + to_string(shape));
      Random random(5);
      const StridedTensor x = random.strided(DType::f64, shape, -4, 4), d_y = random.strided(DType::f64, shape);
      const StridedTensor y = random.empty_strided(DType::f64, shape), d_x = random.empty_strided(DType::f64, shape);
      activate_backward(row.activation, x, d_y, d_x);
      test::expect_gradients(
          [&] {
            activate(row.activation, x, y);
            return test::weighted_sum(y, d_y);
          },
          {{"x", x, d_x}});
      EXPECT_TRUE(y.padding_is_intact() && d_x.padding_is_intact());
    }
  }
}

TEST(Activation, Float32IsFloat64Rounded) {
  Random random(6);
  const Tensor x = random.tensor(DType::f32, {2000}, -12, 12), wide = Tensor::copy_of(x, DType::f64), ones = [] {
    Tensor t(DType::f32, {2000});
    fill(t, 1);
    return t;
  }();
  for (const ActivationInfo& row : kActivations) {
    SCOPED_TRACE(row.name);
    Tensor y(DType::f32, {2000}), d_x(DType::f32, {2000}), y64(DType::f64, {2000}), d_x64(DType::f64, {2000});
    activate(row.activation, x, y);
    activate(row.activation, wide, y64);
    activate_backward(row.activation, x, ones, d_x);
    activate_backward(row.activation, wide, during_call(Tensor::copy_of(ones, DType::f64)), d_x64);
    for (std::int64_t i = 0; i < 2000; ++i) {
      // The tolerance is a few roundings of the result, and of |x f'(x)|, which is the error that a rounding of the argument causes. 0x1p-140 covers the
      // subnormal numbers of float32.
      const double expected = y64.data<double>()[i], condition = std::abs(wide.data<double>()[i] * d_x64.data<double>()[i]);
      EXPECT_NEAR(y.data<float>()[i], expected, 0x1p-24 * 4 * (std::abs(expected) + condition) + 0x1p-140) << x.data<float>()[i];
    }
    EXPECT_TRUE(near(d_x, d_x64, 1e-6));
  }
}

TEST(Activation, OutputMayBeTheInputAndGradientsCanBeAdded) {
  Random random(7);
  const Tensor x = random.tensor(DType::f64, {4, 5}), d_y = random.tensor(DType::f64, {4, 5});
  Tensor y(DType::f64, {4, 5}), d_x(DType::f64, {4, 5}), in_place = x, d_in_place = d_y, added = d_y;
  activate(Activation::gelu, x, y);
  activate(Activation::gelu, in_place, in_place);
  EXPECT_TRUE(same_bits(in_place, y));
  activate_backward(Activation::gelu, x, d_y, d_x);
  activate_backward(Activation::gelu, x, d_in_place, d_in_place);
  EXPECT_TRUE(same_bits(d_in_place, d_x));
  activate_backward(Activation::gelu, x, d_y, added, Write::add);
  for (std::int64_t i = 0; i < 20; ++i) EXPECT_DOUBLE_EQ(added.data<double>()[i], d_y.data<double>()[i] + d_x.data<double>()[i]);
}

TEST(Activation, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  Tensor memory(DType::f32, {5}), other(DType::f64, {4});
  const TensorView x = memory.view().slice(0, 0, 4), shifted = memory.view().slice(0, 1, 5);
  EXPECT_EQ(error_message([&] { activate(Activation::gelu, x, shifted); }), "activate: y overlaps x; outputs need memory of their own");
  EXPECT_EQ(error_message([&] { activate(Activation::gelu, x, memory); }), "activate: y is [5]; it must be [4]");
  EXPECT_EQ(error_message([&] { activate(Activation::gelu, x, other); }),
            "activate: y is float64; it must be float32, as the other tensors");
  EXPECT_EQ(error_message([&] { activate_backward(Activation::gelu, x, during_call(Tensor(DType::f32, {4})), x); }),
            "activate_backward: d_x overlaps x; outputs need memory of their own");
  EXPECT_EQ(error_message([&] { activate(Activation::gelu, {}, x); }), "activate: x is missing");
  Tensor integers(DType::i32, {4});
  EXPECT_EQ(error_message([&] { activate(Activation::gelu, integers, integers); }),
            "the dtype is int32; it must be float32, float64, bfloat16 or float16");
}

TEST(Activation, IsFoundByName) {
  for (const ActivationInfo& row : kActivations) EXPECT_EQ(find_activation(row.name), row.activation);
  EXPECT_EQ(error_message([] { find_activation("swish"); }),
            "there is no activation \"swish\"; there are relu, gelu, gelu_tanh, sigmoid, tanh, silu, quick_gelu");
}

}  // namespace
}  // namespace polyhead::nn
