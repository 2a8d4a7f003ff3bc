#include "core/overlap.h"

#include <map>

#include "support/compare.h"
#include "support/random.h"

namespace polyhead {
namespace {

using test::Random;

// Returns a view with random strides inside `memory`. Positions of the view may share memory.
TensorView random_view(Random& random, Tensor& memory, DType dtype) {
  const auto size = static_cast<std::int64_t>(info(dtype).size);
  while (true) {
    Shape shape;
    Strides strides;
    std::int64_t low = 0, high = 0;
    for (std::int64_t axes = random.integer(0, 3); axes > 0; --axes) {
      shape.push_back(random.pick<std::int64_t>({0, 1, 2, 2, 3, 3, 4, 5}));
      strides.push_back(random.integer(-6, 6));
      const std::int64_t reach = std::max<std::int64_t>(0, shape[-1] - 1) * strides[-1];
      (reach < 0 ? low : high) += reach;
    }
    const std::int64_t elements = memory.numel() / size, span = high - low + 1;
    if (span > elements) continue;
    const std::int64_t start = random.integer(0, elements - span) - low;
    return {memory.data<std::uint8_t>() + start * size, dtype, shape, strides};
  }
}

// Returns for each byte how many positions of the view contain it.
std::map<const char*, int> bytes_of(ConstTensorView view) {
  std::map<const char*, int> bytes;
  const auto size = static_cast<std::int64_t>(info(view.dtype()).size);
  for_each_offset<1>(view.shape(), {view.strides()}, [&](const auto& at) {
    for (std::int64_t i = 0; i < size; ++i) ++bytes[static_cast<const char*>(view.data()) + at[0] * size + i];
  });
  return bytes;
}

TEST(Overlap, IsTrueIfTwoViewsShareAByte) {
  int shared = 0, apart_within = 0, itself = 0;
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    Tensor memory(DType::u8, {8 * random.pick<std::int64_t>({8, 16, 40})});
    const TensorView a = random_view(random, memory, random.pick({DType::f32, DType::u8, DType::bf16}));
    const TensorView b = random_view(random, memory, random.pick({DType::f32, DType::u8, DType::f64}));
    const auto bytes_a = bytes_of(a), bytes_b = bytes_of(b);
    const bool expected = std::any_of(bytes_a.begin(), bytes_a.end(), [&](const auto& byte) { return bytes_b.contains(byte.first); });
    ASSERT_EQ(overlaps(a, b), expected) << to_string(a.shape()) << to_string(a.strides()) << " " << to_string(b.shape())
                                        << to_string(b.strides());
    ASSERT_EQ(overlaps(b, a), expected);
    const bool twice = std::any_of(bytes_a.begin(), bytes_a.end(), [](const auto& byte) { return byte.second > 1; });
    ASSERT_EQ(overlaps_itself(a), twice) << to_string(a.shape()) << to_string(a.strides());
    if (!bytes_a.empty()) {
      ASSERT_EQ(byte_span(a).first, bytes_a.begin()->first);
      ASSERT_EQ(byte_span(a).last, bytes_a.rbegin()->first + 1);
    } else {
      ASSERT_EQ(byte_span(a).first, byte_span(a).last);
    }
    shared += expected;
    itself += twice;
    apart_within += !expected && byte_span(a).first < byte_span(b).last && byte_span(b).first < byte_span(a).last;
  }
  EXPECT_GT(shared, 500);
  EXPECT_GT(itself, 500);
  EXPECT_GT(apart_within, 100);
}

TEST(Overlap, SlicesOfOnePackedTensorDoNotOverlap) {
  Tensor packed(DType::f32, {4, 6});
  const TensorView q = packed.view().slice(1, 0, 2), k = packed.view().slice(1, 2, 4), both = packed.view().slice(1, 1, 3);
  EXPECT_FALSE(overlaps(q, k));
  EXPECT_TRUE(overlaps(q, both));
  EXPECT_FALSE(overlaps(q, k.slice(1, 0, 1).expand({4, 9})));  // a stride of 0 repeats each element of the second view nine times
  EXPECT_FALSE(overlaps(q, {}));
  EXPECT_FALSE(overlaps({}, {}));
}

// A view and its distinct_elements() must have the same elements; distinct_elements() must have each of them once.
TEST(Overlap, DistinctElementsAreThoseOfTheView) {
  struct Case {
    const char* name;
    Shape shape;
    Strides strides;
    std::int64_t positions;
  };
  for (const Case& c : {Case{"dense", {2, 3, 4}, {12, 4, 1}, 24}, Case{"broadcast", {5, 3}, {0, 1}, 3}, Case{"one element", {5, 3}, {0, 0}, 1},
                        Case{"sliding", {4, 5}, {-1, 1}, 8}, Case{"two tables", {2, 4, 5}, {20, 1, -1}, 16}, Case{"slides by two", {4, 5}, {2, 1}, 11},
                        Case{"gaps stay", {4, 3}, {4, -1}, 12}, Case{"strides of 2 and 3", {3, 4}, {3, 2}, 12}}) {
    SCOPED_TRACE(c.name);
    std::vector<float> given(100), distinct(100);
    fill(TensorView(given.data() + 50, DType::f32, c.shape, c.strides), 1);
    const TensorView same = distinct_elements(TensorView(given.data() + 50, DType::f32, c.shape, c.strides));
    fill(TensorView(distinct.data() + (same.data<float>() - given.data()), DType::f32, same.shape(), same.strides()), 1);
    EXPECT_EQ(distinct, given);
    EXPECT_EQ(same.numel(), c.positions);
  }
}

}  // namespace
}  // namespace polyhead
