#include "polyhead/nn/initialisation.h"

#include <cmath>

#include "polyhead/nn/encoder_layer.h"
#include "support/compare.h"

namespace polyhead::nn {
namespace {

using test::error_message;

// A small language model whose attention and feed-forward network have gates.
struct InitialisedModel : Module<InitialisedModel> {
  EncoderLayer layer{{.width = 64, .heads = 4, .seed = 1}};
  LayerNorm norm{{.width = 64}};
  Linear output{{.in_width = 64, .out_width = 100, .seed = 1}};  // computes logits

  InitialisedModel() {
    layer.attention = MultiHeadAttention({.query_width = 64, .heads = 4, .gate = Gate::sigmoid, .seed = 3});
    layer.feed_forward = FeedForward({.width = 64, .hidden_width = 128, .activation = Activation::silu, .gated = true, .seed = 4});
    fill(layer.attention.gate.bias, 3);
    fill(output.bias, 3);
  }

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("layer", self.layer...);
    f("norm", self.norm...);
    f("output", self.output...);
  }
};

void expect_root_mean_square(const Tensor& tensor, double expected) {
  double squares = 0;
  for (const double value : test::to_doubles(tensor)) squares += value * value;
  const auto count = static_cast<double>(tensor.numel());
  EXPECT_NEAR(std::sqrt(squares / count), expected, 4 * expected / std::sqrt(2 * count));  // the tolerance is four standard errors
}

void expect_all(const Tensor& tensor, double expected) {
  for (const double value : test::to_doubles(tensor)) ASSERT_EQ(value, expected);
}

TEST(InitialiseNormal, OnlyWhatIsAddedToTheResidualStreamIsScaled) {
  InitialisedModel model;
  initialise_normal(model, {.deviation = 0.5, .residual_layers = 8, .seed = 2});
  const auto& [attention, feed_forward] = std::tie(model.layer.attention, model.layer.feed_forward);
  for (const Tensor* weight : {&attention.q.weight, &attention.k.weight, &attention.v.weight, &attention.gate.weight, &feed_forward.hidden.weight,
                               &feed_forward.gate.weight, &model.output.weight})
    expect_root_mean_square(*weight, 0.5);
  expect_root_mean_square(attention.output.weight, 0.125);
  expect_root_mean_square(feed_forward.output.weight, 0.125);
  for (const Tensor* bias : {&attention.output.bias, &feed_forward.hidden.bias, &feed_forward.gate.bias, &feed_forward.output.bias, &model.norm.bias,
                             &model.output.bias})
    expect_all(*bias, 0);
  expect_all(attention.gate.bias, 3);
  expect_all(model.norm.weight, 1);
}

TEST(InitialiseNormal, TheCallerSaysWhatIsAddedToAResidualStream) {
  FeedForward layer({.width = 64, .hidden_width = 128, .seed = 1});
  EXPECT_EQ(error_message([&] { initialise_normal(layer, {.residual_layers = 2, .seed = 1}); }),
            "initialise_normal: residual_layers is 2, but adds_to_residual is true for no matrix");
  initialise_normal(layer, {.deviation = 0.5, .residual_layers = 2, .seed = 1, .adds_to_residual = [](const std::string& name, const Tensor&) {
                              return name == "output.weight";
                            }});
  expect_root_mean_square(layer.hidden.weight, 0.5);
  expect_root_mean_square(layer.output.weight, 0.25);
}

TEST(InitialiseNormal, TheGateOfASingleLayerIsRecognised) {
  MultiHeadAttention attention({.query_width = 4, .gate = Gate::sigmoid, .seed = 1});
  FeedForward feed_forward({.width = 4, .hidden_width = 6, .gated = true, .seed = 1});
  initialise_normal(attention, {.seed = 2});
  initialise_normal(feed_forward, {.seed = 2});
  expect_all(attention.gate.bias, 1);
  expect_all(feed_forward.gate.bias, 0);
}

TEST(InitialiseNormal, ValuesDependOnTheSeedAndOnThePlaceInTheList) {
  EncoderLayer layer({.width = 64, .heads = 4, .seed = 1}), again({.width = 64, .heads = 4, .seed = 3});
  auto list = parameters(layer);
  initialise_normal(list, {.seed = 2});
  initialise_normal(again, {.seed = 2});
  EXPECT_TRUE(test::same_bits(again.attention.q.weight, layer.attention.q.weight));
  EXPECT_FALSE(test::same_bits(layer.attention.q.weight, layer.attention.k.weight));
  initialise_normal(again, {.seed = 4});
  EXPECT_FALSE(test::same_bits(again.attention.q.weight, layer.attention.q.weight));
}

TEST(InitialiseNormal, ErrorsSayWhatWasGiven) {
  Linear layer({.in_width = 2, .out_width = 2, .seed = 1});
  EXPECT_EQ(error_message([&] { initialise_normal(layer, {.deviation = -1, .seed = 1}); }),
            "initialise_normal: deviation is -1 and residual_layers 0; neither may be negative or infinite");
}

}  // namespace
}  // namespace polyhead::nn
