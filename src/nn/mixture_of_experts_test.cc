#include "polyhead/nn/mixture_of_experts.h"

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <limits>

#include "core/index.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using test::same_bits;
using testing::HasSubstr;

// Returns a mixture of width 1 whose experts compute output * relu(gate x) * (hidden x). For x > 0 expert i computes factors[i] x^2.
MixtureOfExperts squares(std::vector<float> factors, std::vector<float> router, Activation activation = Activation::relu) {
  MixtureOfExperts mixture;
  const auto one = [](float value) { return Linear(Tensor::of<float>({1, 1}, {value}), {}); };
  mixture.router = Linear(Tensor::of<float>({std::ssize(router), 1}, router), {});
  for (const float factor : factors) mixture.experts.emplace_back(one(1), one(factor), activation, one(1));
  return mixture;
}

Tensor forward(const MixtureOfExperts& mixture, const Tensor& x, const RunOptions& options = {}) {
  Tensor y(x.dtype(), x.shape());
  fill(y, 7);
  mixture.forward(x, y, options);
  return y;
}

TEST(MixtureOfExperts, IsTheFormula) {
  MixtureOfExperts mixture = squares({1, 10, 100}, {2, 1, 0});
  mixture.chosen = 2;
  const auto expected = [](double x, double a, double b, double p, double q) { return static_cast<float>(x * x * (a * p + b * q) / (p + q)); };
  const auto e = [](double x) { return std::exp(x); };
  const Tensor y = forward(mixture, Tensor::of<float>({2, 1}, {1, 3}));
  EXPECT_NEAR(y.data<float>()[0], expected(1, 1, 10, e(2), e(1)), 1e-6);
  EXPECT_NEAR(y.data<float>()[1], expected(3, 1, 10, e(6), e(3)), 1e-5);
  mixture.normalise = false;
  EXPECT_NEAR(forward(mixture, Tensor::of<float>({1, 1}, {1})).data<float>()[0], (e(2) + 10 * e(1)) / (e(2) + e(1) + 1), 1e-6);
  // if all weights of the router are 0, all experts have equal scores, and the first experts must be chosen
  mixture.router = Linear(Tensor(DType::f32, {3, 1}), {});
  mixture.normalise = true;
  EXPECT_NEAR(forward(mixture, Tensor::of<float>({1, 1}, {1})).data<float>()[0], 5.5, 1e-6);
  mixture.router.bias = Tensor::of<float>({3}, {0, 0, 1000});
  EXPECT_NEAR(forward(mixture, Tensor::of<float>({1, 1}, {2})).data<float>()[0], 400, 1e-4);
}

TEST(MixtureOfExperts, ASharedExpertIsAddedThroughItsGate) {
  MixtureOfExperts mixture = squares({1, 10}, {1, 0});
  mixture.chosen = 1;
  mixture.shared = squares({1000}, {0}).experts[0];
  mixture.shared_gate = Linear(Tensor::of<float>({1, 1}, {0.5F}), {});
  EXPECT_NEAR(forward(mixture, Tensor::of<float>({1, 1}, {2})).data<float>()[0], 4 + 4000 / (1 + std::exp(-1.0)), 1e-3);
}

TEST(MixtureOfExperts, ClampedGatesAreTheFormula) {
  MixtureOfExperts mixture = squares({1}, {0}, Activation::silu);
  mixture.chosen = 1;
  mixture.clamped_gate = ClampedGate{.slope = 2, .limit = 3};
  const auto expected = [](double gate, double hidden) {
    gate = std::min(gate, 3.0), hidden = std::min(std::max(hidden, -3.0), 3.0);
    return (hidden + 1) * gate / (1 + std::exp(-2 * gate));
  };
  const Tensor y = forward(mixture, Tensor::of<float>({5, 1}, {1, 5, -1, -5, -400}));
  for (const auto& [i, x] : {std::pair{0, 1.0}, {1, 5.0}, {2, -1.0}, {3, -5.0}, {4, -400.0}}) EXPECT_NEAR(y.data<float>()[i], expected(x, x), 1e-5) << x;
}

MixtureOfExpertsConfig config(DType dtype = DType::f32) {
  return {.width = 6, .hidden_width = 9, .experts = 5, .chosen = 2, .shared_hidden_width = 4, .bias = true, .router_bias = true, .dtype = dtype, .seed = 3};
}

TEST(MixtureOfExperts, RowsDoNotDependOnEachOther) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const MixtureOfExperts mixture(config(dtype));
    Tensor x = Random(2).tensor(dtype, {2, 7, 6});
    const Tensor whole = forward(mixture, x);
    const Workspace workspace(Parameters::constant);
    LimitedThreads one(1);
    EXPECT_TRUE(same_bits(forward(mixture, x, {.executor = &one, .workspace = &workspace}), whole));
    for (std::int64_t row = 0; row < 7; ++row) {
      const Tensor alone = forward(mixture, Tensor::copy_of(x.view().select(0, 1).select(0, row)));
      EXPECT_TRUE(same_bits(alone, whole.view().select(0, 1).select(0, row))) << info(dtype).name << " " << row;
    }
    fill(x.view().select(0, 1).select(0, 3), std::numeric_limits<double>::quiet_NaN());
    const Tensor spoilt = forward(mixture, x);
    for (std::int64_t row = 0; row < 14; ++row) {
      const ConstTensorView ours = spoilt.view().reshape({14, 6}).select(0, row);
      if (row == 10) {
        EXPECT_TRUE(std::isnan(Tensor::copy_of(ours, DType::f64).data<double>()[0]));
      } else {
        EXPECT_TRUE(same_bits(ours, whole.view().reshape({14, 6}).select(0, row)));
      }
    }
  }
}

TEST(MixtureOfExperts, TakesAnyStridesAndExtents) {
  const MixtureOfExperts mixture(config());
  const Tensor x = Random(2).tensor(DType::f32, {3, 4, 6});
  const Tensor expected = forward(mixture, x);
  const Tensor turned = Tensor::copy_of(x.view().transpose(0, 2));
  Tensor memory(DType::f32, {4, 6, 3});
  const TensorView y = memory.view().permute(std::array{2, 0, 1});
  mixture.forward(turned.view().transpose(0, 2), y);
  EXPECT_TRUE(same_bits(y, expected));
  for (const Shape& shape : {Shape{0, 6}, Shape{2, 0, 6}, Shape{6}}) EXPECT_EQ(forward(mixture, Random(2).tensor(DType::f32, shape)).shape(), shape);
}

TEST(MixtureOfExperts, MessagesNameTheRule) {
  const auto made = [](auto change) {
    MixtureOfExpertsConfig c = config();
    change(c);
    return error_message([&] { MixtureOfExperts{c}; });
  };
  EXPECT_THAT(made([](auto& c) { c.chosen = 6; }), HasSubstr("chosen is 6; it must be in [1, 5], the experts"));
  EXPECT_THAT(made([](auto& c) { c.clamped_gate = ClampedGate{.limit = 0}; }), HasSubstr("both must be above 0"));
  EXPECT_EQ(made([](auto& c) { c.clamped_gate = ClampedGate{}, c.activation = Activation::gelu; }), "MixtureOfExperts: activation is gelu; with clamped_gate it must be silu, because a clamped gate has its own formula");
  MixtureOfExperts mixture(config());
  Tensor x(DType::f32, {2, 6}), y(DType::f32, {2, 6}), narrow(DType::f32, {2, 5});
  EXPECT_THAT(error_message([&] { mixture.forward(narrow, y); }), HasSubstr("its last extent must be width = 6"));
  EXPECT_THAT(error_message([&] { mixture.forward(x, x); }), HasSubstr("overlap"));
  mixture.clamped_gate = ClampedGate{};
  mixture.experts[3].activation = Activation::relu;
  EXPECT_EQ(error_message([&] { mixture.forward(x, y); }), "MixtureOfExperts.forward: expert 3 has the activation relu; with clamped_gate it must be silu, because a clamped gate has its own formula");
  mixture.clamped_gate.reset();
  const Linear shared_gate = mixture.shared_gate;
  mixture.shared_gate = {};
  EXPECT_EQ(error_message([&] { mixture.forward(x, y); }), "MixtureOfExperts.forward: the mixture has a shared expert and no shared_gate; the expert's output is multiplied by sigmoid(shared_gate(x))");
  mixture.shared_gate = shared_gate;
  mixture.experts.pop_back();
  EXPECT_THAT(error_message([&] { mixture.forward(x, y); }), HasSubstr("the router has 5 outputs for 4 experts"));
}

}  // namespace
}  // namespace polyhead::nn
