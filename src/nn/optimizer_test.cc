#include "polyhead/nn/optimizer.h"

#include <cmath>
#include <limits>

#include "polyhead/nn/feed_forward.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/thread_count.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::near;
using test::Random;
using test::same_bits;

FeedForward random_layer(DType dtype, std::uint64_t seed, std::int64_t hidden_width = 5) {
  return FeedForward({.width = 3, .hidden_width = hidden_width, .dtype = dtype, .seed = seed});
}

TEST(AdamW, FirstStepMovesByTheLearningRateAgainstTheSign) {
  // In the first step m / (1 - beta1) = g and sqrt(v / (1 - beta2)) = |g|. So after the weight decay, each parameter changes by the learning rate.
  Linear layer(Tensor::of<double>({1, 2}, {3, -4}), {}), gradient(Tensor::of<double>({1, 2}, {0.5, -7}), {});
  AdamW optimizer(layer, {.learning_rate = 0.1, .epsilon = 0, .weight_decay = 0.2});
  optimizer.step(layer, gradient);
  EXPECT_TRUE(near(layer.weight, Tensor::of<double>({1, 2}, {3 * 0.98 - 0.1, -4 * 0.98 + 0.1}), 1e-15));
  EXPECT_EQ(optimizer.steps(), 1);
}

TEST(AdamW, ParametersThatDoNotDecay) {
  FeedForward layer = random_layer(DType::f64, 1), before = layer;
  fill(layer.hidden.bias, 1);
  AdamW optimizer(layer, {.weight_decay = 0.5, .decays = [](const std::string& name, const Tensor& p) {
                            EXPECT_TRUE(name == "hidden.bias" || name == "output.bias" || p.shape().size() == 2);
                            return p.shape().size() > 1;
                          }});
  optimizer.step(layer, zeros_like(layer), {.learning_rate = 1});
  for (const double bias : test::to_doubles(layer.hidden.bias)) EXPECT_EQ(bias, 1);
  EXPECT_EQ(layer.hidden.weight.data<double>()[0], before.hidden.weight.data<double>()[0] / 2);
}

TEST(AdamW, BitsDoNotDependOnThreads) {
  const auto run = [](int threads) {
    const test::ThreadCount count(threads);
    FeedForward layer = random_layer(DType::f32, 1, 20000);
    AdamW optimizer(layer);
    for (std::uint64_t step = 2; step < 5; ++step) {
      FeedForward gradient = random_layer(DType::f32, step, 20000);
      clip_gradients(gradient, 1);
      optimizer.step(layer, gradient);
    }
    return layer;
  };
  const FeedForward one = run(1), several = run(5);
  for (std::size_t i = 0; i < parameters(one).size(); ++i) EXPECT_TRUE(same_bits(*parameters(one)[i].second, *parameters(several)[i].second));
}

TEST(AdamW, RestoredStateGoesOnWithTheSameBits) {
  FeedForward layer = random_layer(DType::f32, 1);
  AdamW optimizer(layer);
  optimizer.step(layer, random_layer(DType::f32, 2));
  FeedForward copy_of_layer = layer;
  AdamW restored(copy_of_layer);
  std::vector<Tensor> state;
  std::vector<std::string> names;
  std::as_const(optimizer).visit([&](const std::string& name, const Tensor& tensor) { state.push_back(tensor), names.push_back(name); });
  EXPECT_EQ(names.size(), 9u);
  EXPECT_EQ(names[1] + " " + names[2], "m.hidden.weight v.hidden.weight");
  std::size_t i = 0;
  restored.visit([&](const std::string&, Tensor& tensor) { copy(state[i++], tensor); });
  EXPECT_EQ(restored.steps(), 1);
  const FeedForward gradient = random_layer(DType::f32, 3);
  optimizer.step(layer, gradient);
  restored.step(copy_of_layer, gradient);
  EXPECT_TRUE(same_bits(layer.hidden.weight, copy_of_layer.hidden.weight));
}

TEST(AdamW, ErrorsSayWhatWasGivenAndNothingIsChanged) {
  FeedForward layer = random_layer(DType::f32, 1);
  AdamW optimizer(layer);
  const FeedForward wider = random_layer(DType::f32, 1, 6);
  EXPECT_EQ(error_message([&] { optimizer.step(layer, wider); }), "AdamW.step: gradient hidden.weight is [6,3]; it must be [5,3]");
  FeedForward without = random_layer(DType::f32, 1);
  without.output.bias = Tensor();
  EXPECT_EQ(error_message([&] { optimizer.step(layer, without); }), "AdamW.step: gradient has 3 tensors; there must be 4");
  EXPECT_EQ(error_message([&] { optimizer.step(layer, layer, {.learning_rate = -1}); }),
            "AdamW.step: learning_rate is -1; it must be finite and not negative");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(error_message([&] { optimizer.step(layer, zeros_like(layer), {.learning_rate = infinity}); }),
            "AdamW.step: learning_rate is inf; it must be finite and not negative");
  EXPECT_EQ(error_message([&] { optimizer.step(layer, layer); }),
            "AdamW.step: the parameter hidden.weight and the gradient of hidden.weight share memory; each needs memory of its own");
  EXPECT_EQ(optimizer.steps(), 0);
  EXPECT_EQ(error_message([&] { AdamW(layer, {.learning_rate = infinity}); }),
            "AdamW: learning_rate is inf, epsilon 1e-08 and weight_decay 0.01; each must be finite and not negative");
  EXPECT_EQ(error_message([&] { AdamW(layer, {.beta2 = 1}); }), "AdamW: beta1 is 0.9 and beta2 1; both must be in [0,1)");
  EXPECT_EQ(error_message([&] { AdamW(layer, {.epsilon = -1}); }),
            "AdamW: learning_rate is 0.001, epsilon -1 and weight_decay 0.01; each must be finite and not negative");
  EXPECT_EQ(error_message([&] { AdamW(random_layer(DType::bf16, 1)); }),
            "AdamW: the parameter hidden.weight is bfloat16; it must be float32 or float64");
  FeedForward tied = random_layer(DType::f32, 1, 3);
  tied.output.weight = Tensor::share(tied.hidden.weight.view(), tied.hidden.weight.owner());
  EXPECT_EQ(error_message([&] { AdamW{tied}; }),
            "AdamW: the parameter hidden.weight and the parameter output.weight share memory; list tied parameters once");
}

TEST(ClipGradients, ScalesOnlyLongGradients) {
  Linear gradient(Tensor::of<double>({1, 2}, {3, 0}), Tensor::of<double>({1}, {-4}));
  const Linear before = gradient;
  EXPECT_DOUBLE_EQ(clip_gradients(gradient, 6), 5);
  EXPECT_TRUE(same_bits(gradient.weight, before.weight));
  EXPECT_DOUBLE_EQ(clip_gradients(gradient, 1), 5);
  EXPECT_TRUE(near(gradient.weight, Tensor::of<double>({1, 2}, {0.6, 0}), 1e-6));
  EXPECT_TRUE(near(gradient.bias, Tensor::of<double>({1}, {-0.8}), 1e-6));
}

TEST(ClipGradients, NonFiniteGradientIsNamedAndNothingIsScaled) {
  FeedForward gradient = random_layer(DType::f32, 1);
  fill(gradient.hidden.weight, 5);
  const FeedForward before = gradient;
  gradient.output.weight.data<float>()[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(error_message([&] { clip_gradients(gradient, 1); }),
            "clip_gradients: the squares of the gradient of output.weight sum to no finite number");
  EXPECT_TRUE(same_bits(gradient.hidden.weight, before.hidden.weight));
  EXPECT_EQ(error_message([&] { clip_gradients(gradient, -1); }), "clip_gradients: max_norm is -1; it may not be negative");
}

// Returns a tensor that shares 3 elements of `memory`, beginning with element `first`.
Tensor part(Tensor& memory, std::int64_t first) { return Tensor::share(memory.view().slice(0, first, first + 3), memory.owner()); }

TEST(ClipGradients, GradientsThatShareMemoryAreRefused) {
  Tensor memory = Tensor::of<double>({6}, {1, 1, 1, 1, 1, 1});
  Tensor a = part(memory, 0), b = part(memory, 2), c = part(memory, 3);
  EXPECT_EQ(error_message([&] { clip_gradients({{"a", &a}, {"b", &b}}, 1); }),
            "clip_gradients: the gradient of a and the gradient of b share memory; list tied parameters once");
  EXPECT_EQ(test::to_doubles(memory), std::vector<double>(6, 1));
  EXPECT_DOUBLE_EQ(clip_gradients({{"a", &a}, {"c", &c}}, 6), std::sqrt(6));
}

TEST(AddGradients, SumsThatShareMemoryAreRefused) {
  Tensor memory = Tensor::of<double>({6}, {1, 2, 3, 4, 5, 6});
  const Tensor before = memory;
  Tensor a = part(memory, 0), b = part(memory, 2), c = part(memory, 3), other(DType::f64, {3});
  EXPECT_EQ(error_message([&] { add_gradients({{"w", &a}}, {{"w", &b}}); }),
            "add_gradients: the sum w and the gradient of w share memory; each needs memory of its own");
  EXPECT_EQ(error_message([&] { add_gradients({{"w", &a}}, {{"w", &a}}); }),
            "add_gradients: the sum w and the gradient of w share memory; each needs memory of its own");
  EXPECT_EQ(error_message([&] { add_gradients({{"v", &other}, {"w", &other}}, {{"v", &a}, {"w", &b}}); }),
            "add_gradients: the sum v and the sum w share memory; list tied parameters once");
  Tensor repeated = Tensor::share(memory.view().slice(0, 0, 1).expand({3}), memory.owner());
  EXPECT_EQ(error_message([&] { add_gradients({{"w", &other}}, {{"w", &repeated}}); }),
            "add_gradients: elements of the sum w share memory; each needs memory of its own");
  EXPECT_TRUE(same_bits(memory, before));
  // The columns of a tensor interleave in memory but share no element, so they may be parameters. Gradients may share memory, because they are only read.
  Tensor columns = Tensor::of<double>({2, 2}, {1, 2, 3, 4});
  Tensor left = Tensor::share(columns.view().select(1, 0), columns.owner()), right = Tensor::share(columns.view().select(1, 1), columns.owner());
  const Tensor gradient = Tensor::of<double>({2}, {10, 20});
  add_gradients({{"v", &gradient}, {"w", &gradient}}, {{"v", &left}, {"w", &right}});
  EXPECT_TRUE(same_bits(columns, Tensor::of<double>({2, 2}, {11, 12, 23, 24})));
  add_gradients({{"w", &a}}, {{"w", &c}});
  EXPECT_TRUE(same_bits(memory, Tensor::of<double>({6}, {1, 2, 3, 5, 7, 9})));
}

// A type with visit(f) that is no Module. Its only parameter is a scalar, a learned temperature.
struct Scalar {
  Tensor value = Tensor::of<double>({}, {3});
  template <class F>
  void visit(const F& f) {
    f(std::string("value"), value);
  }
  template <class F>
  void visit(const F& f) const {
    f(std::string("value"), value);
  }
};

TEST(Optimizer, ScalarParameterOfACallersType) {
  Scalar model, gradient, sum;
  add_gradients(gradient, sum);
  EXPECT_EQ(*sum.value.data<double>(), 6);
  EXPECT_EQ(clip_gradients(sum, 10), 6);
  AdamW optimizer(model, {.learning_rate = 0.5, .epsilon = 0, .weight_decay = 0});
  optimizer.step(model, sum);
  EXPECT_DOUBLE_EQ(*model.value.data<double>(), 2.5);
}

TEST(Optimizer, ListsOfParametersGiveTheResultsOfModules) {
  FeedForward model = random_layer(DType::f32, 1), same = model;
  FeedForward gradient = random_layer(DType::f32, 2), sums = random_layer(DType::f32, 3), same_sums = sums;
  AdamW of_model(model);
  add_gradients(gradient, sums);
  const double norm = clip_gradients(sums, 0.1);
  of_model.step(model, sums);

  auto list = parameters(same), gradient_list = parameters(gradient), sums_list = parameters(same_sums);
  AdamW of_list(list), with_config(list, {});
  add_gradients(gradient_list, sums_list);
  EXPECT_EQ(clip_gradients(sums_list, 0.1), norm);
  of_list.step(list, sums_list);
  const FeedForward zeros = zeros_like(same);
  with_config.step(list, parameters(zeros), {.learning_rate = 0});
  for (std::size_t i = 0; i < list.size(); ++i) EXPECT_TRUE(same_bits(*list[i].second, *parameters(model)[i].second));
}

TEST(AddGradients, SumOfMicroBatchesIsTheGradientOfTheBatch) {
  Random random(1);
  const FeedForward layer = random_layer(DType::f64, 1);
  const Tensor x = random.tensor(DType::f64, {6, 3}), d_y = random.tensor(DType::f64, {6, 3});
  const auto gradient_of = [&](std::int64_t first, std::int64_t last) {
    Tensor y(DType::f64, {last - first, 3});
    FeedForward gradient = zeros_like(layer);
    FeedForward::Saved saved;
    layer.forward(x.view().slice(0, first, last), y, {}, &saved);
    layer.backward(saved, d_y.view().slice(0, first, last), {.parameters = &gradient});
    return gradient;
  };
  const FeedForward whole = gradient_of(0, 6);
  FeedForward sums = gradient_of(0, 2);
  add_gradients(gradient_of(2, 6), sums);
  for (std::size_t i = 0; i < parameters(sums).size(); ++i)
    EXPECT_TRUE(near(*parameters(sums)[i].second, *parameters(whole)[i].second, 1e-14));
  FeedForward wider = random_layer(DType::f64, 1, 6);
  EXPECT_EQ(error_message([&] { add_gradients(sums, wider); }), "add_gradients: sums hidden.weight is [6,3]; it must be [5,3]");
}

}  // namespace
}  // namespace polyhead::nn
