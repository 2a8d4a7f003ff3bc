#include "core/shared_sums.h"

#include "core/overlap.h"
#include "support/compare.h"

namespace polyhead::test {
namespace {

TEST(SharedSums, APositionThatSharesAnElementSharesItsSum) {
  Tensor memory(DType::f32, {4});
  const TensorView sliding(memory.data<float>() + 2, DType::f32, {2, 3}, {1, -1});  // element [i,j] is memory[i - j + 2]
  const SharedSums sums(sliding);
  for (std::int64_t i = 0; i < 2; ++i) {
    for (std::int64_t j = 0; j < 3; ++j) sums.view().select(0, i).select(0, j).data<double>()[0] += 1;
  }
  sums.store();
  EXPECT_EQ(to_doubles(memory), (std::vector<double>{1, 2, 2, 1}));
}

TEST(SharedSums, ASliceNeedsMemoryOnlyForItsElements) {
  Tensor memory(DType::f32, {3, 1000});
  const SharedSums sums(memory.view().slice(1, 5, 6));
  EXPECT_TRUE(sums.view().is_contiguous());
  const MemorySpan span = byte_span(sums.view());
  EXPECT_EQ(span.last - span.first, 3 * 8);
}

TEST(SharedSums, ATargetOfTheSameTypeIsSummedInPlace) {
  Tensor memory(DType::f32, {3});
  fill(memory, 7);
  const SharedSums sums(TensorView(memory).expand({2, 3}), DType::f32);
  EXPECT_EQ(sums.view().data(), TensorView(memory).data());
  for (std::int64_t i = 0; i < 2; ++i) sums.view().select(0, i).data<float>()[1] += 1;
  sums.store();
  EXPECT_EQ(to_doubles(memory), (std::vector<double>{0, 2, 0}));
}

}  // namespace
}  // namespace polyhead::test
