#include "polyhead/nn/cross_entropy.h"

#include <cmath>
#include <limits>

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

Tensor random_targets(Random& random, const Shape& shape, std::int64_t classes) {
  return random.tensor(DType::i64, shape, 0, static_cast<double>(classes - 1));
}

TEST(CrossEntropy, OfEqualLogitsIsTheLogarithmOfTheirNumber) {
  const Tensor logits(DType::f64, {2, 3, 7}), targets = Tensor::of<std::int32_t>({2, 3}, {0, 1, 2, 3, 4, 6});
  const CrossEntropyLoss loss = cross_entropy(logits, targets);
  EXPECT_NEAR(loss.loss, std::log(7.0), 1e-15);
  EXPECT_EQ(loss.positions, 6);
  EXPECT_NEAR(cross_entropy(logits, targets, {}, {.reduction = LossReduction::sum}).loss, 6 * std::log(7.0), 1e-14);
  EXPECT_NEAR(cross_entropy(logits, targets, {}, {.label_smoothing = 0.3}).loss, std::log(7.0), 1e-15);
}

TEST(CrossEntropy, TwoClassesWorkedOutByHand) {
  // p = (1/4, 3/4). With epsilon = 0.2 the smoothed target of class 0 is (0.9, 0.1).
  const Tensor logits = Tensor::of<double>({2}, {0, std::log(3.0)}), target = Tensor::of<std::int64_t>({}, {0});
  Tensor d(DType::f64, {2});
  EXPECT_NEAR(cross_entropy(logits, target, d).loss, std::log(4.0), 1e-15);
  EXPECT_TRUE(near(d, Tensor::of<double>({2}, {-0.75, 0.75}), 1e-15));
  EXPECT_NEAR(cross_entropy(logits, target, d, {.label_smoothing = 0.2}).loss, -0.9 * std::log(0.25) - 0.1 * std::log(0.75), 1e-15);
  EXPECT_TRUE(near(d, Tensor::of<double>({2}, {-0.65, 0.65}), 1e-15));
  EXPECT_NEAR(cross_entropy(logits, target, d, {.label_smoothing = 1}).loss, -0.5 * std::log(0.25) - 0.5 * std::log(0.75), 1e-15);
  EXPECT_TRUE(near(d, Tensor::of<double>({2}, {-0.25, 0.25}), 1e-15));
}

TEST(CrossEntropy, GradientsAreCentralDifferences) {
  for (const Shape& leading : {Shape{}, Shape{1}, Shape{4}, Shape{2, 3}, Shape{2, 0}}) {
    for (const std::int64_t classes : {1, 2, 7, 67}) {
      for (const double smoothing : {0.0, 0.1, 1.0}) {
        for (const LossReduction reduction : {LossReduction::mean, LossReduction::sum}) {
          if (numel(leading) == 0 && reduction == LossReduction::mean) continue;
          SCOPED_TRACE(to_string(leading) + " classes " + std::to_string(classes) + " smoothing " + std::to_string(smoothing));
          Random random(static_cast<std::uint64_t>(classes));
          const Shape shape = appended(leading, {classes});
          const StridedTensor logits = random.strided(DType::f64, shape, -3, 3), d_logits = random.empty_strided(DType::f64, shape);
          const StridedTensor targets = random.strided_copy(during_call(random_targets(random, leading, classes)));
          const CrossEntropyOptions options{.label_smoothing = smoothing, .reduction = reduction};
          CrossEntropyOptions half = options;
          half.d_loss = 0.5;
          const double loss = cross_entropy(logits, targets, d_logits, half).loss;
          EXPECT_EQ(loss, cross_entropy(logits, targets, {}, options).loss);
          test::expect_gradients([&] { return 0.5 * cross_entropy(logits, targets, {}, options).loss; }, {{"logits", logits, d_logits}});
          EXPECT_TRUE(d_logits.padding_is_intact());
        }
      }
    }
  }
}

TEST(CrossEntropy, GradientMayReplaceTheLogits) {
  Random random(2);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Tensor logits = random.tensor(dtype, {5, 40}, -4, 4), targets = random_targets(random, {5}, 40);
    Tensor d(dtype, {5, 40}), in_place = logits;
    const double loss = cross_entropy(logits, targets, d).loss;
    EXPECT_EQ(cross_entropy(in_place, targets, in_place).loss, loss);
    EXPECT_TRUE(same_bits(in_place, d));
  }
}

TEST(CrossEntropy, IgnoredPositionsHaveNoEffect) {
  Random random(3);
  const Tensor kept = random.tensor(DType::f64, {2, 9}), kept_targets = random_targets(random, {2}, 9);
  Tensor logits(DType::f64, {4, 9}), targets(DType::i64, {4}), d(DType::f64, {4, 9}), expected(DType::f64, {2, 9});
  fill(logits, std::numeric_limits<double>::quiet_NaN());
  fill(targets, -100);
  copy(kept, logits.view().slice(0, 1, 4, 2));
  copy(kept_targets, targets.view().slice(0, 1, 4, 2));
  const CrossEntropyLoss loss = cross_entropy(logits, targets, d, {.ignore_index = -100, .label_smoothing = 0.1});
  EXPECT_EQ(loss.loss, cross_entropy(kept, kept_targets, expected, {.label_smoothing = 0.1}).loss);
  EXPECT_EQ(loss.positions, 2);
  EXPECT_TRUE(same_bits(d.view().slice(0, 1, 4, 2), expected));
  EXPECT_TRUE(same_bits(d.view().slice(0, 0, 4, 2), Tensor(DType::f64, {2, 9})));
  fill(targets, -100);
  EXPECT_EQ(cross_entropy(logits, targets, d, {.ignore_index = -100, .reduction = LossReduction::sum}).loss, 0);
  EXPECT_TRUE(same_bits(d, Tensor(DType::f64, {4, 9})));
}

TEST(CrossEntropy, ClassesOfProbabilityZero) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor logits = Tensor::of<double>({2, 3}, {0, -infinity, 0, 1000, 0, -1000}), targets = Tensor::of<std::int64_t>({2}, {0, 0});
  Tensor d(DType::f64, {2, 3});
  EXPECT_NEAR(cross_entropy(logits, targets, d).loss, std::log(2.0) / 2, 1e-15);
  EXPECT_TRUE(near(d, Tensor::of<double>({2, 3}, {-0.25, 0, 0.25, 0, 0, 0}), 1e-15));
  EXPECT_EQ(cross_entropy(logits, during_call(Tensor::of<std::int64_t>({2}, {1, 0}))).loss, infinity);
}

TEST(CrossEntropy, Float32AndSixteenBitsAreNearFloat64) {
  Random random(4);
  for (const std::int64_t classes : {2, 100, 3000}) {
    for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 1e-6}, std::pair{DType::bf16, 4e-3}, std::pair{DType::f16, 5e-4}}) {
      SCOPED_TRACE(std::string(info(dtype).name) + " classes " + std::to_string(classes));
      const Tensor logits = random.tensor(dtype, {8, classes}, -5, 5), targets = random_targets(random, {8}, classes);
      const Tensor wide = Tensor::copy_of(logits, DType::f64);
      Tensor d(dtype, logits.shape()), d_wide(DType::f64, logits.shape());
      const CrossEntropyOptions options{.label_smoothing = 0.1, .reduction = LossReduction::sum};
      const double loss = cross_entropy(logits, targets, d, options).loss, expected = cross_entropy(wide, targets, d_wide, options).loss;
      EXPECT_NEAR(loss, expected, 1e-6 * expected);  // float32 represents logits of every dtype exactly, so the loss has only the rounding errors of its computation
      EXPECT_TRUE(near(Tensor::copy_of(d, DType::f64), d_wide, tolerance));
    }
  }
}

TEST(CrossEntropy, BitsDependNeitherOnThreadsNorOnStrides) {
  Random random(5);
  const Tensor logits = random.tensor(DType::f32, {300, 70}), targets = random_targets(random, {300}, 70);
  const StridedTensor strided = random.strided_copy(logits);
  const auto run = [&](int threads, ConstTensorView x) {
    const test::ThreadCount count(threads);
    Tensor d(DType::f32, logits.shape());
    const double loss = cross_entropy(x, targets, d).loss;
    return std::pair{loss, std::move(d)};
  };
  const auto one = run(1, logits), several = run(5, strided);
  EXPECT_EQ(one.first, several.first);
  EXPECT_TRUE(same_bits(one.second, several.second));
}

TEST(CrossEntropy, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  const Tensor logits(DType::f32, {2, 3}), targets = Tensor::of<std::int64_t>({2}, {0, 3}), none = Tensor::of<std::int64_t>({2}, {-1, -1}),
               floats(DType::f32, {2}), one(DType::i64, {1}), two(DType::i64, {2});
  Tensor d(DType::f32, {2, 3}), d64(DType::f64, {2, 3});
  const auto message = [&](ConstTensorView to, TensorView gradient = {}, const CrossEntropyOptions& options = {}) {
    return error_message([&] { cross_entropy(logits, to, gradient, options); });
  };
  EXPECT_EQ(message(targets), "cross_entropy: targets[1] is 3; targets must be in [0,3)");
  EXPECT_EQ(message(targets, {}, {.ignore_index = -100}), "cross_entropy: targets[1] is 3; targets must be in [0,3) or -100");
  EXPECT_EQ(message(floats), "cross_entropy: targets is float32; it must be int64 or int32");
  EXPECT_EQ(message(one), "cross_entropy: targets is [1]; it must be [2]");
  EXPECT_EQ(message(two, d64), "cross_entropy: d_logits is float64; it must be float32, as the other tensors");
  EXPECT_EQ(message(two, d, {.label_smoothing = 2}), "cross_entropy: label_smoothing is 2; it must be in [0,1]");
  EXPECT_EQ(message(two, {}, {.d_loss = 2}), "cross_entropy: d_loss is 2 without d_logits; it is a factor of the gradient alone, not of the loss");
  EXPECT_EQ(message(none, d, {.ignore_index = -1}),
            "cross_entropy: none of the 2 targets is a class (all are ignore_index), so the mean is undefined; LossReduction::sum gives 0");
  EXPECT_EQ(error_message([&] { cross_entropy(floats.view().select(0, 0), two); }),
            "cross_entropy: logits is float32 []; it must be a floating tensor [*,classes]");
  Tensor packed(DType::f32, {2, 4});
  EXPECT_EQ(error_message([&] { cross_entropy(packed.view().slice(1, 0, 3), two, packed.view().slice(1, 1, 4)); }),
            "cross_entropy: d_logits overlaps logits; outputs need memory of their own");
}

}  // namespace
}  // namespace polyhead::nn
