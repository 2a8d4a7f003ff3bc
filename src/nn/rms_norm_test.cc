#include "polyhead/nn/norm.h"

#include "core/index.h"
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

TEST(RMSNorm, RowOfKnownMeanSquare) {
  // For x = (3, -7) and epsilon = 7, the mean square plus epsilon is (9 + 49) / 2 + 7 = 36, so x is divided by 6. The mean of x is not subtracted.
  const RMSNorm norm(Tensor::of<double>({2}, {1, 6}), 7);
  Tensor y(DType::f64, {2});
  norm.forward(during_call(Tensor::of<double>({2}, {3, -7})), y);
  EXPECT_TRUE(near(y, Tensor::of<double>({2}, {0.5, -7}), 1e-15));
}

// A norm may add an offset to its weight, because Gemma's files store the weight minus 1.
TEST(RMSNorm, AnOffsetIsAddedToTheWeight) {
  EXPECT_EQ(test::to_doubles(RMSNorm({.width = 2, .weight_offset = 1}).weight), std::vector<double>(2));
  for (const DType dtype : {DType::f64, DType::f32}) {
    Random random(3);
    const Tensor stored = Tensor::of<double>({3}, {-0.5, 0.25, 2}), whole = Tensor::of<double>({3}, {0.5, 1.25, 3});
    const RMSNorm plain(Tensor::copy_of(whole, dtype), 1e-3), with_offset(Tensor::copy_of(stored, dtype), 1e-3, 1);
    const Tensor x = random.tensor(dtype, {4, 3}), d_y = random.tensor(dtype, {4, 3});
    Tensor y(dtype, {4, 3}), y_offset = y, d_x = y, d_x_offset = y;
    RMSNorm grads = zeros_like(plain), grads_offset = zeros_like(with_offset);
    plain.forward(x, y), with_offset.forward(x, y_offset);
    plain.backward(x, d_y, {.x = d_x, .parameters = &grads}), with_offset.backward(x, d_y, {.x = d_x_offset, .parameters = &grads_offset});
    EXPECT_TRUE(same_bits(y, y_offset) && same_bits(d_x, d_x_offset) && same_bits(grads.weight, grads_offset.weight));
    const Norm either(with_offset);
    either.forward(x, y_offset);
    EXPECT_TRUE(same_bits(y, y_offset));
  }
}

TEST(RMSNorm, GradientsAreCentralDifferences) {
  for (const Shape& leading : {Shape{}, Shape{1}, Shape{4}, Shape{2, 3}, Shape{0}, Shape{2, 0, 3}}) {
    for (const std::int64_t width : {0, 1, 2, 7, 19}) {
      SCOPED_TRACE(to_string(leading) + " width " + std::to_string(width));
      Random random(static_cast<std::uint64_t>(width));
      RMSNorm norm(random.tensor(DType::f64, {width}), 0.1);
      const Shape shape = appended(leading, {width});
      const StridedTensor x = random.strided(DType::f64, shape), d_y = random.strided(DType::f64, shape);
      const StridedTensor y = random.empty_strided(DType::f64, shape), d_x = random.empty_strided(DType::f64, shape);
      RMSNorm grads = zeros_like(norm);
      random.fill(grads.weight);  // backward() must replace these values
      norm.backward(x, d_y, {.x = d_x, .parameters = &grads});
      auto leaves = test::parameter_leaves(norm, grads);
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

TEST(RMSNorm, InputGradientCanBeAdded) {
  Random random(2);
  const RMSNorm norm(random.tensor(DType::f64, {6}), 1e-5);
  const Tensor x = random.tensor(DType::f64, {3, 6}), d_y = random.tensor(DType::f64, {3, 6}), start = random.tensor(DType::f64, {3, 6});
  Tensor d_x(DType::f64, {3, 6}), added = start;
  norm.backward(x, d_y, {.x = d_x});
  norm.backward(x, d_y, {.x = added, .x_write = Write::add});
  for (std::int64_t i = 0; i < d_x.numel(); ++i) EXPECT_DOUBLE_EQ(added.data<double>()[i], start.data<double>()[i] + d_x.data<double>()[i]);
}

TEST(RMSNorm, BitsDoNotDependOnThreads) {
  Random random(3);
  const RMSNorm norm(random.tensor(DType::f32, {64}), 1e-5);
  const Tensor x = random.tensor(DType::f32, {1000, 64}), d_y = random.tensor(DType::f32, {1000, 64});
  const auto run = [&](int threads) {
    const test::ThreadCount count(threads);
    Tensor y(DType::f32, x.shape()), d_x(DType::f32, x.shape());
    RMSNorm grads = zeros_like(norm);
    norm.forward(x, y);
    norm.backward(x, d_y, {.x = d_x, .parameters = &grads});
    return std::vector<Tensor>{y, d_x, grads.weight};
  };
  const auto one = run(1), several = run(5);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bits(several[i], one[i])) << i;
}

TEST(RMSNorm, WeightGradientSumsOverAllRows) {
  Random random(5);
  const RMSNorm norm(random.tensor(DType::f64, {3}), 1e-5);
  for (const std::int64_t rows : {127, 128, 129, 300}) {  // a thread computes 128 rows at a time
    SCOPED_TRACE(rows);
    const Tensor x = random.tensor(DType::f64, {rows, 3}), d_y = random.tensor(DType::f64, {rows, 3});
    RMSNorm grads = zeros_like(norm), one = zeros_like(norm), sum = zeros_like(norm);
    norm.backward(x, d_y, {.parameters = &grads});
    for (std::int64_t row = 0; row < rows; ++row) {
      norm.backward(x.view().select(0, row), d_y.view().select(0, row), {.parameters = &one});
      for (std::int64_t e = 0; e < 3; ++e) sum.weight.data<double>()[e] += one.weight.data<double>()[e];
    }
    EXPECT_TRUE(near(grads.weight, sum.weight, 1e-12));
  }
}

TEST(RMSNorm, Float32FollowsFloat64) {
  Random random(6);
  for (const std::int64_t width : {1, 5, 33, 300}) {
    SCOPED_TRACE(width);
    const auto run = [&](const Tensor& weight, const Tensor& x, const Tensor& d_y) {
      const RMSNorm norm(weight, 1e-3);
      Tensor y(weight.dtype(), x.shape()), d_x(weight.dtype(), x.shape());
      RMSNorm grads = zeros_like(norm);
      norm.forward(x, y);
      norm.backward(x, d_y, {.x = d_x, .parameters = &grads});
      return std::vector<Tensor>{y, d_x, grads.weight};
    };
    const Tensor weight = random.tensor(DType::f32, {width}), x = random.tensor(DType::f32, {13, width}), d_y = random.tensor(DType::f32, {13, width});
    const auto narrow = run(weight, x, d_y);
    const auto wide = run(Tensor::copy_of(weight, DType::f64), Tensor::copy_of(x, DType::f64), Tensor::copy_of(d_y, DType::f64));
    for (std::size_t i = 0; i < wide.size(); ++i) EXPECT_TRUE(near(Tensor::copy_of(narrow[i], DType::f64), wide[i], 1e-5)) << i;
  }
}

TEST(RMSNorm, SixteenBitStorageRoundsOnce) {
  Random random(4);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor weight = random.tensor(dtype, {33}), x = random.tensor(dtype, {3, 33});
    Tensor wide(DType::f32, {3, 33}), narrow(dtype, {3, 33});
    RMSNorm(Tensor::copy_of(weight, DType::f32), 1e-5).forward(during_call(Tensor::copy_of(x, DType::f32)), wide);
    RMSNorm(weight, 1e-5).forward(x, narrow);
    EXPECT_TRUE(same_bits(narrow, Tensor::copy_of(wide, dtype)));
  }
}

TEST(RMSNorm, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  const RMSNorm norm({.width = 3});
  Tensor x(DType::f32, {4, 3}), y(DType::f32, {4, 2});
  EXPECT_EQ(error_message([&] { norm.forward(y, y); }), "RMSNorm.forward: x is [4,2]; its last extent must be width = 3");
  EXPECT_EQ(error_message([&] { norm.forward(x, x); }), "RMSNorm.forward: y overlaps x; outputs need memory of their own");
  EXPECT_EQ(error_message([&] { norm.backward(x, x, {.x = x}); }), "RMSNorm.backward: d_x overlaps x; outputs need memory of their own");
  EXPECT_EQ(error_message([] { RMSNorm({.width = 3, .epsilon = -1}); }), "RMSNorm: epsilon is -1; it may not be negative");
  EXPECT_EQ(error_message([] { RMSNorm(RMSNormConfig{}); }), "RMSNorm: width is 0; it must be at least 1");
}

}  // namespace
}  // namespace polyhead::nn
