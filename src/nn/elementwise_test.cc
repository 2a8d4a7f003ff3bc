#include "nn/elementwise.h"

#include <atomic>
#include <cmath>

#include "support/compare.h"
#include "support/last_piece_first.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

TEST(WithoutUnreachedRows, RowsWithoutAGradientAreZeroIfTheyAreNotFinite) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    SCOPED_TRACE(info(dtype).name);
    test::Random random(1);
    Tensor x = random.tensor(dtype, {2, 3, 4}), d_y = random.tensor(dtype, {2, 3, 5});
    fill(d_y.view().select(0, 0).slice(0, 1, 3), 0);
    EXPECT_FALSE(without_unreached_rows(x, d_y, nullptr, nullptr));  // no copy is made, because all rows of x are finite
    fill(x.view().select(0, 1).select(0, 0).slice(0, 2, 3), std::nan(""));
    EXPECT_FALSE(without_unreached_rows(x, d_y, nullptr, nullptr));  // no copy is made, because the non-finite row has a gradient
    fill(x.view().select(0, 0).select(0, 2).slice(0, 3, 4), -HUGE_VAL);
    Tensor expected = x;
    fill(expected.view().select(0, 0).select(0, 2), 0);
    const Tensor result = without_unreached_rows(x, d_y, nullptr, nullptr);
    EXPECT_TRUE(test::same_bits(result, expected));
  }
}

TEST(WithoutUnreachedRows, RowsAreSharedByThreads) {
  Tensor x = test::Random(1).tensor(DType::f32, {3000, 64});
  const Tensor d_y(DType::f32, {3000, 64});
  fill(x.view().slice(0, 2000, 2900), HUGE_VAL);
  Tensor expected = x;
  fill(expected.view().slice(0, 2000, 2900), 0);
  test::LastPieceFirst threads(2);
  const Tensor result = without_unreached_rows(x, d_y, &threads, nullptr);
  EXPECT_GT(threads.pieces, 4);
  EXPECT_TRUE(test::same_bits(result, expected));
}

}  // namespace
}  // namespace polyhead::nn
