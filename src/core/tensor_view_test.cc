#include "polyhead/tensor_view.h"

#include "support/compare.h"
#include "support/random.h"

namespace polyhead {
namespace {

using test::error_message;
using test::Random;
using test::to_doubles;

using Values = std::vector<double>;

// Returns an int64 tensor with the elements 0, 1, 2, … in row-major order.
Tensor counting(const Shape& shape) {
  Tensor tensor(DType::i64, shape);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data<std::int64_t>()[i] = i;
  return tensor;
}

TEST(Dims, AreCountedFromBothEnds) {
  Dims dims{2, 3, 5};
  EXPECT_EQ(dims[0], 2);
  EXPECT_EQ(dims[-1], 5);
  EXPECT_EQ(dims[-3], 2);
  EXPECT_EQ(dims.first(2), (Dims{2, 3}));
  EXPECT_EQ(dims.last(2), (Dims{3, 5}));
  dims.insert(0, 7);
  dims.insert(4, 11);
  dims.erase(2);
  EXPECT_EQ(to_string(dims), "[7,2,5,11]");
  EXPECT_EQ(to_string(Dims{}), "[]");
  EXPECT_FALSE(Dims({2, 3}) == Dims({2, 3, 0}));
}

TEST(Dims, CopiesAreEqualAtEverySize) {
  Dims dims, kept{1, 2, 3};
  for (int size = 0; size <= kMaxRank; ++size) {
    const Dims copy = dims;
    EXPECT_EQ(copy, dims);
    kept = dims;
    EXPECT_EQ(to_string(kept), to_string(dims));
    kept = Dims{7};
    EXPECT_EQ(kept, Dims{7});
    EXPECT_EQ(dims.first(size / 2).size() + dims.last(size - size / 2).size(), size);
    if (size < kMaxRank) dims.push_back(100 + size);
  }
  EXPECT_EQ(dims.first(9)[-1], 108);
  EXPECT_EQ(dims.last(9)[0], 107);
  EXPECT_EQ(error_message([&] { (void)Dims({1, 2}).first(-1); }), "no -1 dimensions in [1,2]");
  EXPECT_EQ(error_message([&] { (void)Dims({1, 2}).last(3); }), "no 3 dimensions in [1,2]");
}

TEST(Dims, HaveAtMostSixteenEntries) {
  Dims dims;
  for (int i = 0; i < kMaxRank; ++i) dims.push_back(1);
  EXPECT_EQ(error_message([&] { dims.push_back(1); }), "a tensor has at most 16 dimensions; " + to_string(dims) + " cannot have another");
  EXPECT_EQ(error_message([&] { Dims({1}).insert(2, 1); }), "no dimension can be inserted at 2 of [1]");
  EXPECT_EQ(error_message([&] { Dims({1}).erase(1); }), "no dimension 1 in [1]");
}

TEST(Shape, NumelFindsOverflow) {
  const std::int64_t big = std::int64_t{1} << 40;
  EXPECT_EQ(numel({}), 1);
  EXPECT_EQ(numel({3, 0, 5}), 0);
  EXPECT_EQ(numel({big, 1 << 22}), std::int64_t{1} << 62);
  EXPECT_EQ(error_message([&] { numel({big, 1 << 22, 2}); }), "the extents [1099511627776,4194304,2] have a product beyond 2^63 - 1");
  EXPECT_EQ(numel({big, big, 0}), 0);
  EXPECT_EQ(numel({0, big, big}), 0);
  EXPECT_NE(error_message([&] { Tensor(DType::f64, {std::int64_t{1} << 61}); }), "");
}

TEST(Shape, BroadcastsByNumPysRule) {
  EXPECT_EQ(broadcast_shapes({2, 1, 4}, {3, 1}), (Shape{2, 3, 4}));
  EXPECT_EQ(broadcast_shapes({3, 1}, {2, 1, 4}), (Shape{2, 3, 4}));
  EXPECT_EQ(broadcast_shapes({}, {2, 3}), (Shape{2, 3}));
  EXPECT_EQ(broadcast_shapes({1}, {0}), (Shape{0}));
  EXPECT_EQ(error_message([] { broadcast_shapes({2, 3}, {4}); }), "shapes [2,3] and [4] do not broadcast: 3 against 4");
  EXPECT_NE(error_message([] { broadcast_shapes({2}, {0}); }), "");
}

// Whether the expression `tensor.view()` compiles. It must not compile for a temporary tensor, whose view would dangle after the statement.
template <class T>
concept GivesAView = requires(T tensor) { static_cast<T>(tensor).view(); };
static_assert(std::is_convertible_v<Tensor&, TensorView> && std::is_convertible_v<const Tensor&, ConstTensorView>);
static_assert(!std::is_convertible_v<Tensor, TensorView> && !std::is_convertible_v<Tensor, ConstTensorView>);
static_assert(!std::is_convertible_v<const Tensor, ConstTensorView> && !std::is_convertible_v<const Tensor&, TensorView>);
static_assert(GivesAView<Tensor&> && GivesAView<const Tensor&> && !GivesAView<Tensor&&> && !GivesAView<const Tensor&&>);

TEST(TensorView, AnAbsentTensorDiffersFromAnEmptyOne) {
  EXPECT_FALSE(TensorView());
  EXPECT_FALSE(ConstTensorView(TensorView()));
  EXPECT_TRUE(TensorView(static_cast<float*>(nullptr), {0, 3}));
  EXPECT_TRUE(Tensor(DType::f32, {0}));
  EXPECT_FALSE(Tensor());
  EXPECT_EQ(TensorView().numel(), 0);
  EXPECT_EQ(Tensor().numel(), 0);
}

TEST(TensorView, RefusesWrongShapesStridesAndPointers) {
  float x[6]{};
  EXPECT_EQ(error_message([&] {
              TensorView(x, DType::f32, {2, 3}, {1});
            }),
            "a tensor view needs a stride per extent: shape [2,3], strides [1]");
  EXPECT_EQ(error_message([&] { TensorView(x, {2, -3}); }), "a tensor's extents must not be negative: shape [2,-3]");
  EXPECT_EQ(error_message([&] { TensorView(static_cast<float*>(nullptr), {1}); }),
            "a tensor view of shape [1] needs memory, not a null pointer");
  EXPECT_EQ(error_message([&] { TensorView(x, {2, 3}).data<double>(); }), "a tensor of float32 was read as float64");
  EXPECT_EQ(error_message([&] { TensorView(x, {2, 3}).extent(2); }), "extent: there is no axis 2 in a tensor of shape [2,3]");
  EXPECT_EQ(error_message([&] { TensorView(x, {2, 3}).stride(-3); }), "stride: there is no axis -3 in a tensor of shape [2,3]");
}

TEST(TensorView, SelectDropsTheAxis) {
  const Tensor x = counting({2, 3, 4});
  EXPECT_EQ(to_doubles(x.view().select(1, 2)), (Values{8, 9, 10, 11, 20, 21, 22, 23}));
  EXPECT_EQ(to_doubles(x.view().select(-1, 0).select(0, 1)), (Values{12, 16, 20}));
  EXPECT_EQ(error_message([&] { x.view().select(1, 3); }), "select: index 3 is outside of axis 1 of a tensor of shape [2,3,4]");
  EXPECT_NE(error_message([&] { x.view().select(1, -1); }), "");
  EXPECT_EQ(error_message([&] { x.view().select(3, 0); }), "select: there is no axis 3 in a tensor of shape [2,3,4]");
}

TEST(TensorView, SliceMayStepForwardsOrBackwards) {
  const Tensor x = counting({7});
  EXPECT_EQ(to_doubles(x.view().slice(0, 1, 6)), (Values{1, 2, 3, 4, 5}));
  EXPECT_EQ(to_doubles(x.view().slice(0, 1, 6, 2)), (Values{1, 3, 5}));
  EXPECT_EQ(to_doubles(x.view().slice(0, 1, 5, 3)), (Values{1, 4}));
  EXPECT_EQ(to_doubles(x.view().slice(0, 1, 6, -1)), (Values{5, 4, 3, 2, 1}));
  EXPECT_EQ(to_doubles(x.view().slice(0, 0, 7, -3)), (Values{6, 3, 0}));
  EXPECT_EQ(to_doubles(x.view().slice(0, 0, 7, -1).slice(0, 2, 5, -2)), (Values{2, 4}));
  EXPECT_EQ(to_doubles(x.view().slice(0, 7, 7)), Values{});
  EXPECT_EQ(to_doubles(x.view().slice(0, 0, 0, -2)), Values{});
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(to_doubles(x.view().slice(0, 1, 7, huge)), Values{1});
  EXPECT_EQ(to_doubles(x.view().slice(0, 1, 7, -huge - 1)), Values{6});
  for (std::int64_t first = 0; first <= 7; ++first) {
    for (std::int64_t last = first; last <= 7; ++last) {
      for (const std::int64_t step : {1, 2, 3, 6, 7, 8, -1, -2, -3, -6, -7, -8}) {
        Values expected;
        for (std::int64_t i = step > 0 ? first : last - 1; first <= i && i < last; i += step) expected.push_back(static_cast<double>(i));
        EXPECT_EQ(to_doubles(x.view().slice(0, first, last, step)), expected) << first << " " << last << " " << step;
      }
    }
  }
  EXPECT_EQ(error_message([&] { x.view().slice(0, 5, -1, -1); }), "slice: [5,-1) is no range of axis 0 of a tensor of shape [7]; 0 <= first <= last <= 7 is needed, whatever the step");
  EXPECT_EQ(error_message([&] { x.view().slice(0, 2, 8); }), "slice: [2,8) is no range of axis 0 of a tensor of shape [7]; 0 <= first <= last <= 7 is needed, whatever the step");
  EXPECT_NE(error_message([&] { x.view().slice(0, 3, 2); }), "");
  EXPECT_NE(error_message([&] { x.view().slice(0, -1, 2); }), "");
  EXPECT_EQ(error_message([&] { x.view().slice(0, 0, 2, 0); }), "slice: the step must not be 0");
}

TEST(TensorView, AxesMove) {
  const Tensor x = counting({2, 3, 4});
  EXPECT_EQ(to_doubles(x.view().select(0, 0).transpose(0, -1)), (Values{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  const int order[] = {2, 0, 1};
  const auto permuted = x.view().permute(order);
  EXPECT_EQ(permuted.shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(to_doubles(permuted.select(0, 3)), (Values{3, 7, 11, 15, 19, 23}));
  EXPECT_EQ(x.view().move_axis(0, 2).shape(), (Shape{3, 4, 2}));
  EXPECT_EQ(x.view().move_axis(-1, 0).shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(to_doubles(x.view().move_axis(-1, 0)), to_doubles(permuted));
  const int twice[] = {0, 0, 1}, two[] = {0, 1};
  EXPECT_EQ(error_message([&] { x.view().permute(twice); }), "permute: axis 0 is given twice");
  EXPECT_EQ(error_message([&] { x.view().permute(two); }), "permute: 2 axes are given for a tensor of shape [2,3,4]");
  EXPECT_EQ(error_message([&] { x.view().transpose(0, 3); }), "transpose: there is no axis 3 in a tensor of shape [2,3,4]");
}

TEST(TensorView, UnsqueezeAddsAnExtentOfOne) {
  const Tensor x = counting({2, 3});
  EXPECT_EQ(x.view().unsqueeze(0).shape(), (Shape{1, 2, 3}));
  EXPECT_EQ(x.view().unsqueeze(2).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(x.view().unsqueeze(-1).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(x.view().unsqueeze(-3).shape(), (Shape{1, 2, 3}));
  EXPECT_EQ(to_doubles(x.view().unsqueeze(1)), (Values{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(error_message([&] { x.view().unsqueeze(3); }), "unsqueeze: no axis can be inserted at 3 in a tensor of shape [2,3]");
}

TEST(TensorView, ExpandRepeatsByZeroStrides) {
  const Tensor x = counting({2, 1});
  EXPECT_EQ(to_doubles(x.view().expand({2, 2, 3})), (Values{0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(x.view().expand({2, 0}).numel(), 0);
  EXPECT_EQ(error_message([&] { x.view().expand({3, 1}); }), "expand: shape [2,1] does not broadcast to [3,1]");
  EXPECT_EQ(error_message([&] { x.view().expand({2}); }), "expand: shape [2,1] has more dimensions than [2]");
  EXPECT_NE(error_message([&] { x.view().expand({2, -1}); }), "");
}

TEST(TensorView, UnflattenSplitsOneExtent) {
  const Tensor x = counting({2, 6});
  const auto heads = x.view().unflatten(-1, {3, 2});
  EXPECT_EQ(heads.shape(), (Shape{2, 3, 2}));
  EXPECT_EQ(to_doubles(heads.select(1, 2)), (Values{4, 5, 10, 11}));
  EXPECT_EQ(to_doubles(x.view().slice(1, 0, 6, -1).unflatten(1, {2, 3}).select(1, 1)), (Values{2, 1, 0, 8, 7, 6}));
  EXPECT_EQ(error_message([&] { x.view().unflatten(1, {4, 2}); }), "unflatten: an extent of 6 does not split into [4,2]");
  EXPECT_NE(error_message([&] { x.view().unflatten(1, {-3, -2}); }), "");
}

TEST(TensorView, ContiguousIsRowMajorWithoutGaps) {
  const Tensor x = counting({2, 3});
  EXPECT_TRUE(x.view().is_contiguous());
  EXPECT_FALSE(x.view().transpose(0, 1).is_contiguous());
  EXPECT_FALSE(x.view().slice(1, 0, 2).is_contiguous());
  EXPECT_TRUE(x.view().slice(0, 0, 1).is_contiguous());
  EXPECT_TRUE(x.view().slice(1, 0, 1).slice(0, 0, 1).is_contiguous());
  EXPECT_FALSE(x.view().slice(0, 0, 2, -1).is_contiguous());
  EXPECT_TRUE(x.view().transpose(0, 1).slice(0, 0, 0).is_contiguous());  // a tensor without elements is contiguous with any strides
  EXPECT_TRUE(x.view().slice(0, 0, 0).transpose(0, 1).is_contiguous());
  EXPECT_TRUE(x.view().select(0, 0).select(0, 0).is_contiguous());
}

TEST(TensorView, AViewWithoutElementsNeedsNoPointer) {
  const TensorView empty(static_cast<float*>(nullptr), {3, 0, 2});
  EXPECT_EQ(empty.select(0, 2).data(), nullptr);
  EXPECT_EQ(empty.slice(0, 1, 3, -1).data(), nullptr);
  EXPECT_EQ(empty.reshape({0}).shape(), (Shape{0}));
}

// Returns a random shape with `elements` elements.
Shape random_shape(Random& random, std::int64_t elements) {
  Shape shape;
  while (elements > 1) {
    std::int64_t factor = random.integer(2, elements);
    while (elements % factor != 0) ++factor;
    shape.push_back(factor);
    elements /= factor;
  }
  for (std::int64_t i = random.integer(0, 2); i > 0; --i) shape.insert(static_cast<int>(random.integer(0, shape.size())), 1);
  return shape;
}

// Checks by brute force, from every offset, whether some strides give `shape` the elements of `view` in row-major order.
bool expressible(ConstTensorView view, const Shape& shape) {
  std::vector<std::int64_t> offsets;
  for_each_offset<1>(view.shape(), {view.strides()}, [&](const auto& at) { offsets.push_back(at[0]); });
  // The stride of an axis can only be the offset of its index 1.
  Strides strides = shape;
  std::int64_t inner = 1;
  for (int axis = shape.size() - 1; axis >= 0; --axis) {
    strides[axis] = shape[axis] > 1 ? offsets[static_cast<std::size_t>(inner)] - offsets[0] : 0;
    inner *= shape[axis];
  }
  std::size_t i = 0;
  bool equal = true;
  for_each_offset<1>(shape, {strides}, [&](const auto& at) { equal &= at[0] == offsets[i++] - offsets[0]; });
  return equal;
}

TEST(TensorView, ReshapeSucceedsExactlyWhereStridesExist) {
  int possible = 0, impossible = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const std::int64_t elements = random.pick<std::int64_t>({1, 4, 6, 8, 12, 16, 24, 36});
    const Shape from = random_shape(random, elements), to = random_shape(random, elements);
    test::StridedTensor memory = random.empty_strided(DType::i64, from);
    const Tensor values = counting(from);
    copy(values, memory);
    ConstTensorView view = memory;
    if (view.rank() > 0 && random.integer(0, 3) == 0) {  // sometimes repeat a row, by a stride of 0
      const int axis = static_cast<int>(random.integer(0, view.rank() - 1));
      view = view.slice(axis, 0, 1).expand(from);
    }
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << to_string(from) << " strides " << to_string(view.strides()) << " to "
                                    << to_string(to));
    if (expressible(view, to)) {
      ++possible;
      ASSERT_EQ(to_doubles(view.reshape(to)), to_doubles(view));
      ASSERT_EQ(view.reshape(to).shape(), to);
    } else {
      ++impossible;
      ASSERT_NE(error_message([&] { view.reshape(to); }), "");
    }
  }
  EXPECT_GT(possible, 1000);
  EXPECT_GT(impossible, 1000);
}

TEST(TensorView, ReshapeErrorsSayWhy) {
  const Tensor x = counting({2, 3});
  EXPECT_EQ(error_message([&] { x.view().reshape({7}); }), "reshape: [2,3] has 6 elements, [7] has 7");
  EXPECT_EQ(error_message([&] { x.view().transpose(0, 1).reshape({6}); }),
            "reshape: strides [1,3] of shape [3,2] cannot express [6] without a copy");
  EXPECT_NE(error_message([&] { x.view().reshape({-2, -3}); }), "");
  EXPECT_EQ(to_doubles(x.view().reshape({3, 1, 2}).select(0, 1)), (Values{2, 3}));
  const Tensor one = counting({1, 1}), scalar = counting({}), none = counting({3, 0});
  EXPECT_EQ(one.view().reshape({}).rank(), 0);
  EXPECT_EQ(scalar.view().reshape({1, 1}).shape(), (Shape{1, 1}));
  EXPECT_EQ(none.view().reshape({0, 7}).shape(), (Shape{0, 7}));
}

}  // namespace
}  // namespace polyhead
