#include "polyhead/nn/embedding.h"

#include "core/index.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using test::same_bits;
using test::StridedTensor;

TEST(Embedding, PicksRowsByIdsOfBothDtypes) {
  const Embedding embedding(Tensor::of<float>({3, 2}, {0, 1, 10, 11, 20, 21}));
  const Tensor expected = Tensor::of<float>({2, 2, 2}, {20, 21, 0, 1, 20, 21, 10, 11});
  Tensor y(DType::f32, {2, 2, 2});
  embedding.forward(during_call(Tensor::of<std::int64_t>({2, 2}, {2, 0, 2, 1})), y);
  EXPECT_TRUE(same_bits(y, expected));
  fill(y, 0);
  embedding.forward(during_call(Tensor::of<std::int32_t>({2, 2}, {2, 0, 2, 1})), y);
  EXPECT_TRUE(same_bits(y, expected));
}

TEST(Embedding, OfOneIdIsOneRow) {
  const Embedding embedding(Tensor::of<float>({2, 2}, {0, 1, 10, 11}));
  Tensor y(DType::f32, {2});
  embedding.forward(during_call(Tensor::of<std::int64_t>({}, {1})), y);
  EXPECT_TRUE(same_bits(y, Tensor::of<float>({2}, {10, 11})));
}

TEST(Embedding, WriteAddAddsToTheOutput) {
  const Embedding embedding(Tensor::of<float>({2, 2}, {0, 1, 10, 11}));
  Tensor y = Tensor::of<float>({1, 2}, {100, 200});
  embedding.forward(during_call(Tensor::of<std::int64_t>({1}, {1})), y, {Write::add});
  EXPECT_TRUE(same_bits(y, Tensor::of<float>({1, 2}, {110, 211})));
}

TEST(Embedding, InitialisedAsTorch) {
  const Embedding embedding({.count = 100, .width = 50, .seed = 3});
  double sum = 0, squares = 0, fourth = 0;
  for (const double x : test::to_doubles(embedding.weight)) {
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  // For a standard normal x, the means of x, x^2 and x^4 are 0, 1 and 3, and the variances are 1, 2 and 96. The tolerance is four standard errors.
  EXPECT_LT(std::abs(sum / 5000), 4 / std::sqrt(5000.0));
  EXPECT_NEAR(squares / 5000, 1, 4 * std::sqrt(2 / 5000.0));
  EXPECT_NEAR(fourth / 5000, 3, 4 * std::sqrt(96 / 5000.0));
}

TEST(Embedding, GradientsAreCentralDifferences) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{9}, Shape{3, 4}, Shape{0}, Shape{2, 0}}) {
    for (const std::int64_t width : {0, 1, 5}) {
      SCOPED_TRACE(to_string(shape) + " width " + std::to_string(width));
      Random random(static_cast<std::uint64_t>(width));
      Embedding embedding(random.tensor(DType::f64, {6, width})), grads(random.tensor(DType::f64, {6, width}));
      const Shape y_shape = appended(shape, {width});
      const StridedTensor ids = random.strided(DType::i64, shape, 0, 4);  // some of the 6 ids occur twice, and id 5 never occurs
      const StridedTensor d_y = random.strided(DType::f64, y_shape), y = random.empty_strided(DType::f64, y_shape);
      embedding.backward(ids, d_y, {&grads});
      test::expect_gradients(
          [&] {
            embedding.forward(ids, y);
            return test::weighted_sum(y, d_y);
          },
          test::parameter_leaves(embedding, grads));
      EXPECT_TRUE(y.padding_is_intact());
    }
  }
}

TEST(Embedding, GradientOfARepeatedIdAddsUpInTheAccumulator) {
  // Sums 300 ones. A sum that is stored in bfloat16 after each addition would stop at 256.
  const Tensor ids(DType::i64, {300});
  Tensor d_y(DType::bf16, {300, 1});
  fill(d_y, 1);
  const Embedding embedding({.count = 2, .width = 1, .dtype = DType::bf16, .seed = 1});
  Embedding grads = zeros_like(embedding);
  embedding.backward(ids, d_y, {&grads});
  EXPECT_EQ(test::to_doubles(grads.weight), (std::vector<double>{300, 0}));
}

TEST(Embedding, GradientsOfSeveralUsesAddUp) {
  const Embedding embedding({.count = 3, .width = 1, .seed = 1});
  Embedding grads = zeros_like(embedding);
  const Tensor ids = Tensor::of<std::int64_t>({3}, {2, 0, 2}), more = Tensor::of<std::int64_t>({3}, {0, 0, 0}), d_y = Tensor::of<float>({3, 1}, {1, 10, 100});
  embedding.backward(ids, d_y, {&grads});
  embedding.backward(more, d_y, {.parameters = &grads, .parameters_write = Write::add});
  EXPECT_EQ(test::to_doubles(grads.weight), (std::vector<double>{121, 0, 101}));
}

TEST(Embedding, IdOutOfRangeIsNamedAndNothingIsWritten) {
  const Embedding embedding({.count = 3, .width = 2, .seed = 1});
  Tensor y(DType::f32, {2, 2, 2});
  EXPECT_EQ(error_message([&] {
              embedding.forward(during_call(Tensor::of<std::int64_t>({2, 2}, {0, 1, 3, 0})), y);
            }),
            "Embedding.forward: ids[1,0] is 3; ids must be in [0,3)");
  EXPECT_EQ(error_message([&] {
              embedding.forward(during_call(Tensor::of<std::int32_t>({2, 2}, {0, 1, 2, -1})), y);
            }),
            "Embedding.forward: ids[1,1] is -1; ids must be in [0,3)");
  EXPECT_TRUE(same_bits(y, Tensor(DType::f32, {2, 2, 2})));
  Embedding grads = zeros_like(embedding);
  EXPECT_EQ(error_message([&] {
              embedding.backward(during_call(Tensor::of<std::int64_t>({2, 2}, {0, 1, 3, 0})), y, {&grads});
            }),
            "Embedding.backward: ids[1,0] is 3; ids must be in [0,3)");
}

TEST(Embedding, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  const Embedding embedding({.count = 3, .width = 2, .seed = 1});
  const Tensor ids(DType::i64, {4});
  Tensor y(DType::f32, {4, 3});
  EXPECT_EQ(error_message([&] { embedding.forward(ids, y); }), "Embedding.forward: y is [4,3]; it must be [4,2]");
  EXPECT_EQ(error_message([&] { embedding.forward(y, y); }), "Embedding.forward: ids is float32; it must be int64 or int32");
  EXPECT_EQ(error_message([&] { embedding.forward({}, y); }), "Embedding.forward: ids is missing");
  EXPECT_EQ(error_message([&] {
              embedding.forward(ids, during_call(Tensor(DType::f64, {4, 2})));
            }),
            "Embedding.forward: y is float64; it must be float32, as the other tensors");
  EXPECT_EQ(error_message([&] { Embedding(Tensor(DType::f32, {4})); }),
            "Embedding: the weight must be a floating tensor [count,width]; it is float32 [4]");
}

}  // namespace
}  // namespace polyhead::nn
