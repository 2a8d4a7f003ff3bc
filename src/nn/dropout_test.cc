#include "polyhead/nn/dropout.h"

#include <limits>

#include "core/philox.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/thread_count.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using test::same_bits;
using test::StridedTensor;

TEST(Dropout, KeepsWhatAttentionDropoutKeeps) {
  Random random(1);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const std::int64_t width : {1, 3, 4, 130, 257}) {
      SCOPED_TRACE(std::string(info(dtype).name) + " width " + std::to_string(width));
      const StridedTensor x = random.strided(dtype, {2, 3, width}), y = random.empty_strided(dtype, {2, 3, width});
      dropout(x, y, 0.25, 77);
      const std::vector<double> from = test::to_doubles(x), to = test::to_doubles(y);
      std::vector<std::uint8_t> keep(static_cast<std::size_t>(width));
      for (std::int64_t row = 0; row < 6; ++row) {
        DropoutBits(0.25, 77).row(0, 0, row, 0, width, keep.data());
        for (std::int64_t e = 0; e < width; ++e) {
          const auto i = static_cast<std::size_t>(row * width + e);
          EXPECT_NEAR(to[i], keep[static_cast<std::size_t>(e)] != 0 ? from[i] / 0.75 : 0, dtype == DType::bf16 ? 6e-3 : 1e-6) << i;
        }
      }
      EXPECT_TRUE(y.padding_is_intact());
    }
  }
}

TEST(Dropout, KeepsTheMeanAndDropsTheShare) {
  Tensor x(DType::f64, {100, 1000});
  fill(x, 1);
  dropout(x, x, 0.3, 5);
  double sum = 0, dropped = 0;
  for (const double value : test::to_doubles(x)) sum += value, dropped += value == 0 ? 1 : 0;
  EXPECT_NEAR(dropped / 1e5, 0.3, 6e-3);  // the tolerance is four standard deviations
  EXPECT_NEAR(sum / 1e5, 1, 1e-2);
}

TEST(Dropout, WithProbability0And1) {
  Random random(2);
  const Tensor x = random.tensor(DType::f32, {4, 9});
  Tensor y(DType::f32, {4, 9});
  dropout(x, y, 0, 1);
  EXPECT_TRUE(same_bits(y, x));
  Tensor spoilt(DType::f32, {4, 9});
  fill(spoilt, std::numeric_limits<double>::quiet_NaN());
  dropout(spoilt, y, 1, 1);
  EXPECT_TRUE(same_bits(y, Tensor(DType::f32, {4, 9})));
}

TEST(Dropout, BitsDoNotDependOnThreads) {
  Random random(3);
  const Tensor x = random.tensor(DType::f32, {3000, 70});
  const auto run = [&](int threads) {
    const test::ThreadCount count(threads);
    Tensor y(DType::f32, x.shape());
    dropout(x, y, 0.1, 9);
    return y;
  };
  EXPECT_TRUE(same_bits(run(1), run(5)));
}

TEST(Dropout, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  Tensor x(DType::f32, {3, 4}), y(DType::f32, {3, 5});
  EXPECT_EQ(error_message([&] { dropout(x, y, 0.5, 1); }), "dropout: y is [3,5]; it must be [3,4]");
  EXPECT_EQ(error_message([&] { dropout(x, x, 1.5, 1); }), "dropout: p is 1.5; it must be in [0,1]");
  EXPECT_EQ(error_message([&] { dropout(y.view().slice(1, 0, 4), y.view().slice(1, 1, 5), 0.5, 1); }),
            "dropout: y overlaps x; outputs need memory of their own");
}

}  // namespace
}  // namespace polyhead::nn
