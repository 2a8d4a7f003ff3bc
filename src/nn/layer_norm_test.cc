#include "polyhead/nn/layer_norm.h"

#include "core/index.h"
#include "core/text.h"
#include "nn/add_norm.h"
#include "nn/elementwise.h"
#include "support/gradients.h"
#include "support/random.h"
#include "support/thread_count.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::near;
using test::Random;
using test::same_bits;
using test::StridedTensor;

TEST(LayerNorm, RowOfKnownMeanAndVariance) {
  // the row (2, 4, 4, 4, 5, 5, 7, 9) of x has mean 5 and variance 4
  const LayerNorm norm(Tensor::of<double>({8}, {1, 1, 1, 1, 1, 1, 1, 10}), Tensor::of<double>({8}, {0, 0, 0, 0, 0, 0, 0, 3}), 0);
  Tensor y(DType::f64, {8});
  norm.forward(during_call(Tensor::of<double>({8}, {2, 4, 4, 4, 5, 5, 7, 9})), y);
  EXPECT_TRUE(near(y, Tensor::of<double>({8}, {-1.5, -0.5, -0.5, -0.5, 0, 0, 1, 23}), 1e-15));
}

TEST(LayerNorm, EpsilonIsAddedToTheVariance) {
  const LayerNorm norm({.width = 2, .epsilon = 3, .dtype = DType::f64});
  Tensor y(DType::f64, {2});
  norm.forward(during_call(Tensor::of<double>({2}, {-1, 1})), y);  // the row (-1, 1) has variance 1
  EXPECT_TRUE(near(y, Tensor::of<double>({2}, {-0.5, 0.5}), 1e-15));
}

TEST(LayerNorm, ConstantRowGivesTheBias) {
  const LayerNorm norm({.width = 5});
  Tensor x(DType::f32, {2, 5}), y(DType::f32, {2, 5});
  fill(x, 1e6);
  norm.forward(x, y);
  EXPECT_TRUE(same_bits(y, Tensor(DType::f32, {2, 5})));
}

TEST(LayerNorm, LargeOffsetDoesNotCancel) {
  Random random(1);
  const Tensor noise = random.tensor(DType::f32, {3, 384});
  Tensor x = noise, y(DType::f32, {3, 384}), y64(DType::f64, {3, 384});
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] += 1000;
  LayerNorm({.width = 384}).forward(x, y);
  LayerNorm({.width = 384, .dtype = DType::f64}).forward(during_call(Tensor::copy_of(x, DType::f64)), y64);
  // The float32 mean, about 1000, has an error of a few times 1000 * 2^-24 = 6e-5. The norm divides the differences from the mean by 0.58, the standard
  // deviation.
  EXPECT_TRUE(near(y, y64, 1e-3));
}

TEST(LayerNorm, GradientsAreCentralDifferences) {
  for (const Shape& leading : {Shape{}, Shape{1}, Shape{4}, Shape{2, 3}, Shape{0}, Shape{2, 0, 3}}) {
    for (const std::int64_t width : {0, 1, 2, 7, 19}) {
      for (const bool bias : {true, false}) {
        SCOPED_TRACE(to_string(leading) + " width " + std::to_string(width) + (bias ? " with bias" : ""));
        Random random(static_cast<std::uint64_t>(width));
        LayerNorm norm(random.tensor(DType::f64, {width}), bias ? random.tensor(DType::f64, {width}) : Tensor(), 0.1);
        const Shape shape = appended(leading, {width});
        const StridedTensor x = random.strided(DType::f64, shape), d_y = random.strided(DType::f64, shape);
        const StridedTensor y = random.empty_strided(DType::f64, shape), d_x = random.empty_strided(DType::f64, shape);
        LayerNorm grads = zeros_like(norm);
        for (const auto& [name, tensor] : parameters(grads)) random.fill(*tensor);  // backward() must replace these values
        norm.backward(x, d_y, {.x = d_x, .parameters = &grads});
        auto leaves = test::parameter_leaves(norm, grads);
        EXPECT_EQ(leaves.size(), bias ? 2u : 1u);
        leaves.push_back({"x", x, d_x});
        test::expect_gradients(
            [&] {
              norm.forward(x, y);
              return test::weighted_sum(y, d_y);
            },
            leaves);
        EXPECT_TRUE(d_x.padding_is_intact() && y.padding_is_intact());
      }
    }
  }
}

TEST(LayerNorm, InputGradientCanBeAdded) {
  Random random(2);
  const LayerNorm norm(random.tensor(DType::f64, {6}), random.tensor(DType::f64, {6}), 1e-5);
  const Tensor x = random.tensor(DType::f64, {3, 6}), d_y = random.tensor(DType::f64, {3, 6}), start = random.tensor(DType::f64, {3, 6});
  Tensor d_x(DType::f64, {3, 6}), added = start;
  norm.backward(x, d_y, {.x = d_x});
  norm.backward(x, d_y, {.x = added, .x_write = Write::add});
  for (std::int64_t i = 0; i < d_x.numel(); ++i) EXPECT_DOUBLE_EQ(added.data<double>()[i], start.data<double>()[i] + d_x.data<double>()[i]);
}

TEST(LayerNorm, ParameterGradientsSumOverAllRows) {
  Random random(5);
  const LayerNorm norm(random.tensor(DType::f64, {3}), random.tensor(DType::f64, {3}), 1e-5);
  for (const std::int64_t rows : {127, 128, 129, 300}) {  // a thread computes 128 rows at a time
    SCOPED_TRACE(rows);
    const Tensor x = random.tensor(DType::f64, {rows, 3}), d_y = random.tensor(DType::f64, {rows, 3});
    LayerNorm grads = zeros_like(norm), one = zeros_like(norm), sum = zeros_like(norm);
    norm.backward(x, d_y, {.parameters = &grads});
    for (std::int64_t row = 0; row < rows; ++row) {
      norm.backward(x.view().select(0, row), d_y.view().select(0, row), {.parameters = &one});
      for (std::int64_t e = 0; e < 3; ++e) {
        sum.weight.data<double>()[e] += one.weight.data<double>()[e];
        sum.bias.data<double>()[e] += one.bias.data<double>()[e];
      }
    }
    EXPECT_TRUE(near(grads.weight, sum.weight, 1e-12));
    EXPECT_TRUE(near(grads.bias, sum.bias, 1e-12));
  }
}

TEST(LayerNorm, AbsentBiasChangesNoOtherGradient) {
  Random random(6);
  for (const DType dtype : {DType::f32, DType::f64}) {
    const LayerNorm with(random.tensor(dtype, {33}), Tensor(dtype, {33}), 1e-5), without(with.weight, {}, 1e-5);
    const Tensor x = random.tensor(dtype, {200, 33}), d_y = random.tensor(dtype, {200, 33});
    const auto run = [&](const LayerNorm& norm) {
      Tensor d_x(dtype, x.shape());
      LayerNorm grads = zeros_like(norm);
      norm.backward(x, d_y, {.x = d_x, .parameters = &grads});
      return std::vector<Tensor>{d_x, grads.weight};
    };
    EXPECT_TRUE(same_bits(run(with)[0], run(without)[0]));
    EXPECT_TRUE(same_bits(run(with)[1], run(without)[1]));
  }
}

TEST(LayerNorm, BitsDoNotDependOnThreads) {
  Random random(3);
  const LayerNorm norm(random.tensor(DType::f32, {64}), random.tensor(DType::f32, {64}), 1e-5);
  const Tensor x = random.tensor(DType::f32, {1000, 64}), d_y = random.tensor(DType::f32, {1000, 64});
  const auto run = [&](int threads) {
    const test::ThreadCount count(threads);
    Tensor y(DType::f32, x.shape()), d_x(DType::f32, x.shape());
    LayerNorm grads = zeros_like(norm);
    norm.forward(x, y);
    norm.backward(x, d_y, {.x = d_x, .parameters = &grads});
    return std::vector<Tensor>{y, d_x, grads.weight, grads.bias};
  };
  const auto one = run(1), several = run(5);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bits(several[i], one[i])) << i;
}

TEST(LayerNorm, SixteenBitStorageRoundsOnce) {
  Random random(4);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor weight = random.tensor(dtype, {33}), bias = random.tensor(dtype, {33}), x = random.tensor(dtype, {3, 33});
    Tensor wide(DType::f32, {3, 33}), narrow(dtype, {3, 33});
    LayerNorm(Tensor::copy_of(weight, DType::f32), Tensor::copy_of(bias, DType::f32), 1e-5)
        .forward(during_call(Tensor::copy_of(x, DType::f32)), wide);
    LayerNorm(weight, bias, 1e-5).forward(x, narrow);
    EXPECT_TRUE(same_bits(narrow, Tensor::copy_of(wide, dtype)));
  }
}

TEST(LayerNorm, AddingInTheSamePassChangesNoBit) {
  Random random(6);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const std::int64_t width : {0, 1, 19, 64}) {
      SCOPED_TRACE(cat(dtype, " width ", width));
      const LayerNorm norm(random.tensor(dtype, {width}), random.tensor(dtype, {width}), 1e-5);
      const Shape shape{3, 2, width};
      const StridedTensor x = random.strided(dtype, shape), y = random.empty_strided(dtype, shape), sums = random.strided(dtype, shape);
      Tensor expected_sums = Tensor::copy_of(sums), expected(dtype, shape);
      add(x, expected_sums, nullptr);
      norm.forward(expected_sums, expected);
      add_and_normalise(norm, x, sums, y, nullptr);
      EXPECT_TRUE(same_bits(sums, expected_sums));
      EXPECT_TRUE(same_bits(y, expected));
      EXPECT_TRUE(sums.padding_is_intact() && y.padding_is_intact());
    }
  }
}

TEST(LayerNorm, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  const LayerNorm norm({.width = 3});
  Tensor x(DType::f32, {4, 3}), y(DType::f32, {4, 2});
  EXPECT_EQ(error_message([&] { norm.forward(y, y); }), "LayerNorm.forward: x is [4,2]; its last extent must be width = 3");
  EXPECT_EQ(error_message([&] { norm.forward(x, y); }), "LayerNorm.forward: y is [4,2]; it must be [4,3]");
  EXPECT_EQ(error_message([&] { norm.forward(x, x); }), "LayerNorm.forward: y overlaps x; outputs need memory of their own");
  EXPECT_EQ(error_message([&] { norm.backward(x, x, {.x = x}); }),
            "LayerNorm.backward: d_x overlaps x; outputs need memory of their own");
  EXPECT_EQ(error_message([&] { LayerNorm({.width = 3, .epsilon = -1}); }), "LayerNorm: epsilon is -1; it may not be negative");
  EXPECT_EQ(error_message([&] { LayerNorm().forward(x, y); }),
            "LayerNorm.forward: the weight must be a floating tensor [width]; there is none");
  EXPECT_EQ(error_message([&] { LayerNorm(Tensor(DType::f32, {2}), Tensor(DType::f32, {3}), 0); }),
            "LayerNorm: bias is [3]; it must be [2]");
}

}  // namespace
}  // namespace polyhead::nn
