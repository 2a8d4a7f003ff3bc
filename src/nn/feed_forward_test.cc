#include "polyhead/nn/feed_forward.h"

#include "core/index.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using test::same_bits;
using test::StridedTensor;

TEST(FeedForward, IsTheFormula) {
  // hidden(x) = (x, -x), so the output is 10 relu(x) + 100 relu(-x) + 1
  const FeedForward module(Linear(Tensor::of<float>({2, 1}, {1, -1}), {}),
                           Linear(Tensor::of<float>({1, 2}, {10, 100}), Tensor::of<float>({1}, {1})), Activation::relu);
  Tensor y(DType::f32, {3, 1});
  module.forward(during_call(Tensor::of<float>({3, 1}, {2, -3, 0})), y);
  EXPECT_TRUE(same_bits(y, Tensor::of<float>({3, 1}, {21, 301, 1})));
}

TEST(FeedForward, GatedIsTheFormula) {
  // hidden(x) = 3 x and gate(x) = -x + 1, so the output is 2 relu(1 - x) 3 x
  const FeedForward module(Linear(Tensor::of<float>({1, 1}, {3}), {}), Linear(Tensor::of<float>({1, 1}, {2}), {}), Activation::relu,
                           Linear(Tensor::of<float>({1, 1}, {-1}), Tensor::of<float>({1}, {1})));
  Tensor y(DType::f32, {3, 1});
  module.forward(during_call(Tensor::of<float>({3, 1}, {2, -3, 0})), y);
  EXPECT_TRUE(same_bits(y, Tensor::of<float>({3, 1}, {0, -72, 0})));
}

TEST(FeedForward, GatedEvaluationInChunksHasTheBitsOfOnePass) {
  const FeedForward module({.width = 8, .hidden_width = 500, .out_width = 7, .activation = Activation::silu, .gated = true, .seed = 1});
  const Tensor x = Random(2).tensor(DType::f32, {30, 33, 8});
  Tensor whole(DType::f32, {30, 33, 7}), parts(DType::f32, {30, 33, 7});
  FeedForward::Saved saved;
  module.forward(x, whole, {}, &saved);
  LimitedThreads one(1), two(2);
  for (Executor* executor : {&one, &two}) {
    fill(parts, 7);
    module.forward(x, parts, {.executor = executor});
    EXPECT_TRUE(same_bits(parts, whole));
  }
}

TEST(FeedForward, SavingChangesNoBit) {
  const FeedForward module({.width = 9, .hidden_width = 20, .out_width = 4, .seed = 1});
  const Tensor x = Random(1).tensor(DType::f32, {2, 3, 9});
  Tensor y(DType::f32, {2, 3, 4}), again(DType::f32, {2, 3, 4}), hidden(DType::f32, {2, 3, 20});
  FeedForward::Saved saved;
  module.forward(x, y);
  module.forward(x, again, {}, &saved);
  EXPECT_TRUE(same_bits(again, y));
  module.hidden.forward(x, hidden);
  EXPECT_TRUE(same_bits(saved.hidden, hidden));
}

TEST(FeedForward, EvaluationInChunksHasTheBitsOfOnePass) {
  const FeedForward module({.width = 8, .hidden_width = 500, .out_width = 7, .seed = 1});
  for (const Shape& leading : {Shape{1000}, Shape{1, 1000}, Shape{30, 33}, Shape{3, 1, 400}}) {
    const Tensor x = Random(2).tensor(DType::f32, appended(leading, {8}));
    Tensor whole(DType::f32, appended(leading, {7})), parts(DType::f32, whole.shape());
    FeedForward::Saved saved;
    module.forward(x, whole, {}, &saved);
    LimitedThreads one(1), two(2);
    for (Executor* executor : {&one, &two}) {
      fill(parts, 7);
      module.forward(x, parts, {.executor = executor});
      EXPECT_TRUE(same_bits(parts, whole)) << to_string(leading);
    }
  }
}

TEST(FeedForward, ParametersAreNamedAndDiffer) {
  const FeedForward module({.width = 4, .hidden_width = 4, .seed = 5});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : parameters(module)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"hidden.weight", "hidden.bias", "output.weight", "output.bias"}));
  EXPECT_FALSE(same_bits(module.hidden.weight, module.output.weight));
  const FeedForward plain({.width = 4, .hidden_width = 4, .bias = false, .seed = 1});
  EXPECT_EQ(parameters(plain).size(), 2u);
}

TEST(FeedForward, GradientsAreCentralDifferences) {
  for (const auto& [activation, gated] : {std::pair{Activation::relu, false}, std::pair{Activation::gelu, false},
                                          std::pair{Activation::gelu_tanh, false}, std::pair{Activation::silu, true}}) {
    for (const Shape& leading : {Shape{}, Shape{1}, Shape{3}, Shape{2, 1, 3}, Shape{0, 2}}) {
      for (const auto& [width, hidden_width, out_width] : {std::tuple{3, 5, 4}, std::tuple{1, 1, 1}}) {
        SCOPED_TRACE(to_string(leading) + " " + std::to_string(width) + " " +
                     std::string(kActivations[static_cast<std::size_t>(activation)].name));
        FeedForward module({.width = width,
                            .hidden_width = hidden_width,
                            .out_width = out_width,
                            .activation = activation,
                            .gated = gated,
                            .dtype = DType::f64,
                            .seed = 2});
        Random random(3);
        const Shape x_shape = appended(leading, {width}), y_shape = appended(leading, {out_width});
        const StridedTensor x = random.strided(DType::f64, x_shape), d_y = random.strided(DType::f64, y_shape);
        const StridedTensor y = random.empty_strided(DType::f64, y_shape), d_x = random.empty_strided(DType::f64, x_shape);
        FeedForward::Saved saved;
        FeedForward grads = zeros_like(module);
        module.forward(x, y, {}, &saved);
        module.backward(saved, d_y, {.x = d_x, .parameters = &grads});
        auto leaves = test::parameter_leaves(module, grads);
        leaves.push_back({"x", x, d_x});
        test::expect_gradients(
            [&] {
              module.forward(x, y);
              return test::weighted_sum(y, d_y);
            },
            leaves);
        EXPECT_TRUE(d_x.padding_is_intact() && y.padding_is_intact());
        Tensor alone(DType::f64, x_shape);
        module.backward(saved, d_y, {.x = alone});
        EXPECT_TRUE(same_bits(alone, d_x.view()));
        Tensor added = alone;
        module.backward(saved, d_y, {.x = added, .x_write = Write::add});
        for (std::int64_t i = 0; i < added.numel(); ++i) EXPECT_NEAR(added.data<double>()[i], 2 * alone.data<double>()[i], 1e-14);
      }
    }
  }
}

TEST(FeedForward, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  const FeedForward module({.width = 3, .hidden_width = 5, .seed = 1});
  Tensor x(DType::f32, {4, 3}), y(DType::f32, {4, 3}), narrow(DType::f32, {4, 2});
  EXPECT_EQ(error_message([&] { module.forward(narrow, y); }), "FeedForward.forward: x is [4,2]; its last extent must be width = 3");
  EXPECT_EQ(error_message([&] { module.forward(x, narrow); }), "FeedForward.forward: y is [4,2]; it must be [4,3]");
  EXPECT_EQ(error_message([&] { module.forward(x, x); }), "FeedForward.forward: y overlaps x; outputs need memory of their own");
  EXPECT_EQ(error_message([&] { module.backward({}, y, {.x = x}); }), "FeedForward.backward: saved is empty; give it to forward first");
  EXPECT_EQ(error_message(
                [&] { FeedForward(Linear({.in_width = 2, .out_width = 3, .seed = 1}), Linear({.in_width = 4, .out_width = 1, .seed = 1}), Activation::relu); }),
            "FeedForward: hidden is float32 [3,2] and output float32 [1,4]; hidden's out_width must be output's in_width, and both must have one dtype");
}

TEST(FeedForward, APassSavedByAnotherLayerIsRefusedBeforeAnythingIsWritten) {
  const FeedForward module({.width = 3, .hidden_width = 5, .seed = 1}), other({.width = 3, .hidden_width = 5, .activation = Activation::relu, .seed = 1}),
      wider({.width = 3, .hidden_width = 6, .seed = 1}), narrower({.width = 2, .hidden_width = 5, .out_width = 3, .seed = 1});
  const Tensor x(DType::f32, {4, 3}), d_y(DType::f32, {4, 3});
  Tensor y(DType::f32, {4, 3});
  FeedForward::Saved saved;
  module.forward(x, y, {}, &saved);
  FeedForward grads({.width = 3, .hidden_width = 5, .seed = 1});
  const FeedForward before = grads;
  const auto refused = [&](const FeedForward& layer) { return error_message([&] { layer.backward(saved, d_y, {.parameters = &grads}); }); };
  EXPECT_EQ(refused(other), "FeedForward.backward: saved comes from a layer with activation gelu; this one has relu");
  EXPECT_EQ(refused(wider), "FeedForward.backward: saved.hidden is [4,5]; it must be [4,6]");
  EXPECT_EQ(refused(narrower), "FeedForward.backward: saved.x is [4,3]; it must be [4,2]");
  const FeedForward gated({.width = 3, .hidden_width = 5, .gated = true, .seed = 1});
  FeedForward of_gated = zeros_like(gated);
  EXPECT_EQ(error_message([&] { gated.backward(saved, d_y, {.parameters = &of_gated}); }),
            "FeedForward.backward: saved comes from a layer without a gate");
  EXPECT_TRUE(test::same_bits(grads.output.weight, before.output.weight));
}

}  // namespace
}  // namespace polyhead::nn
