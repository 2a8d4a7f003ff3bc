#include "support/compare.h"
#include "support/random.h"

namespace polyhead {
namespace {

using test::error_message;
using test::Random;
using test::same_bits;
using test::StridedTensor;
using test::to_doubles;

using Values = std::vector<double>;

TEST(Copy, KeepsBitsInEveryLayout) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const DType dtype = kDTypes[static_cast<std::size_t>(random.integer(0, 12))].dtype;
    Shape shape;
    for (std::int64_t axes = random.integer(0, 4); axes > 0; --axes) shape.push_back(random.integer(0, 4));
    const StridedTensor from = random.strided(dtype, shape, is_floating(dtype) ? -9 : 0, 100), to = random.empty_strided(dtype, shape);
    copy(from, to);
    EXPECT_EQ(to_doubles(to), to_doubles(from));
    EXPECT_TRUE(to.padding_is_intact());
    EXPECT_TRUE(same_bits(Tensor::copy_of(from), to.view()));
  }
}

TEST(Copy, ConvertsBetweenFloatingDtypes) {
  const Tensor x = Tensor::of<double>({4}, {1.0 / 3, 1e10, -1e-10, 1e300});
  EXPECT_EQ(to_doubles(Tensor::copy_of(x, DType::f32)), (Values{1.0f / 3, 1e10f, -1e-10f, std::numeric_limits<double>::infinity()}));
  EXPECT_EQ(to_doubles(Tensor::copy_of(Tensor::of<double>({3}, {1.0 / 3, 1e5, 1}), DType::f16)),
            (Values{0x555p-12, std::numeric_limits<double>::infinity(), 1}));
  EXPECT_EQ(to_doubles(Tensor::copy_of(Tensor::of<float>({1}, {1.0f / 3}), DType::bf16)), (Values{0xabp-9}));
  EXPECT_EQ(to_doubles(Tensor::copy_of(Tensor::of<bf16>({1}, {{0x3eab}}), DType::f64)), (Values{0xabp-9}));
}

TEST(Copy, ReadsEachElementBeforeItIsWritten) {
  for (const std::int64_t step : {1, -1}) {
    Tensor memory = Tensor::of<float>({2, 4}, {0, 1, 2, 3, 4, 5, 6, 7});
    const TensorView every_other = memory.view().slice(1, 0, 4, 2), others = memory.view().slice(1, 1, 4, 2);
    copy(every_other, others.slice(1, 0, 2, step));  // the source and the target share no element
    EXPECT_EQ(to_doubles(memory), step == 1 ? (Values{0, 0, 2, 2, 4, 4, 6, 6}) : (Values{0, 2, 2, 0, 4, 6, 6, 4}));
  }
  Tensor memory = Tensor::of<float>({5}, {0, 1, 2, 3, 4});
  copy(memory.view(), memory.view().slice(0, 0, 5, -1));
  EXPECT_EQ(to_doubles(memory), (Values{4, 3, 2, 1, 0}));
  Tensor square = Tensor::of<float>({2, 2}, {0, 1, 2, 3});
  copy(square.view().transpose(0, 1), square);
  EXPECT_EQ(to_doubles(square), (Values{0, 2, 1, 3}));
  Tensor shifted = Tensor::of<float>({6}, {0, 1, 2, 3, 4, 5});
  copy(shifted.view().slice(0, 0, 5, 2), shifted.view().slice(0, 1, 4));
  EXPECT_EQ(to_doubles(shifted), (Values{0, 0, 2, 4, 4, 5}));
  Tensor wide = Tensor::of<double>({2}, {1, 2});  // the target of the copy has a narrower dtype and lies in the memory of `wide`
  copy(wide, TensorView(static_cast<float*>(wide.view().data()) + 2, {2}));
  EXPECT_EQ(static_cast<const float*>(wide.view().data())[2], 1);
  EXPECT_EQ(static_cast<const float*>(wide.view().data())[3], 2);
}

TEST(Copy, IntegersMustFit) {
  const Tensor x = Tensor::of<std::int64_t>({3}, {-128, 0, 127});
  EXPECT_EQ(to_doubles(Tensor::copy_of(x, DType::i8)), (Values{-128, 0, 127}));
  EXPECT_EQ(error_message([&] { Tensor::copy_of(x, DType::u64); }), "copy: -128 of int64 does not fit in uint64");
  EXPECT_EQ(error_message([&] { Tensor::copy_of(Tensor::of<std::int64_t>({1}, {128}), DType::i8); }),
            "copy: 128 of int64 does not fit in int8");
  EXPECT_EQ(error_message([&] { Tensor::copy_of(Tensor::of<std::uint64_t>({1}, {~std::uint64_t{0}}), DType::i64); }),
            "copy: 18446744073709551615 of uint64 does not fit in int64");
}

TEST(Copy, KindsDoNotMix) {
  const Tensor x(DType::f32, {2});
  EXPECT_EQ(error_message([&] { Tensor::copy_of(x, DType::i32); }), "copy: float32 does not convert to int32");
  EXPECT_EQ(error_message([&] { Tensor::copy_of(x, DType::boolean); }), "copy: float32 does not convert to bool");
  EXPECT_EQ(error_message([&] { Tensor::copy_of(Tensor(DType::boolean, {2}), DType::u8); }), "copy: bool does not convert to uint8");
  Tensor three(DType::f32, {3});
  EXPECT_EQ(error_message([&] { copy(x, three); }), "copy: shapes [2] and [3] differ");
  EXPECT_EQ(error_message([&] { copy({}, three); }), "copy: a tensor is missing");
}

TEST(Fill, WritesTheViewAndNothingElse) {
  for (const DTypeInfo& row : kDTypes) {
    SCOPED_TRACE(row.name);
    const StridedTensor x = Random(7).empty_strided(row.dtype, {3, 4});
    fill(x, 1);
    EXPECT_EQ(to_doubles(x), Values(12, 1));
    EXPECT_TRUE(x.padding_is_intact());
  }
}

TEST(Fill, ValueMustBeANumberOfTheDtype) {
  Tensor i8(DType::i8, {1}), u64(DType::u64, {1}), i64(DType::i64, {1});
  fill(i8, -128);
  EXPECT_EQ(to_doubles(i8), Values{-128});
  EXPECT_EQ(error_message([&] { fill(i8, 128); }), "fill: 128 is no int8");
  EXPECT_EQ(error_message([&] { fill(i8, 0.5); }), "fill: 0.5 is no int8");
  EXPECT_EQ(error_message([&] { fill(i8, std::nan("")); }), "fill: nan is no int8");
  EXPECT_NE(error_message([&] { fill(u64, -1); }), "");
  EXPECT_NE(error_message([&] { fill(u64, 0x1p64); }), "");
  EXPECT_NE(error_message([&] { fill(i64, 0x1p63); }), "");
  fill(i64, -0x1p63);
  EXPECT_EQ(to_doubles(i64), Values{-0x1p63});
  EXPECT_EQ(error_message([&] { fill({}, 1); }), "fill: the tensor is missing");
}

TEST(Tensor, StartsAtZeroAndAligned) {
  const Tensor x(DType::f32, {3, 5});
  EXPECT_EQ(to_doubles(x), Values(15, 0));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.view().data()) % 64, 0u);
  EXPECT_EQ(Tensor(DType::f32, {3, 0}).numel(), 0);
  EXPECT_EQ(Tensor(DType::f32, {}).numel(), 1);
}

TEST(Tensor, ACopyHasSeparateMemory) {
  Tensor a = Tensor::of<float>({2}, {1, 2});
  Tensor b = a, c;
  c = a;
  a.data<float>()[0] = 9;
  EXPECT_EQ(to_doubles(b), (Values{1, 2}));
  EXPECT_EQ(to_doubles(c), (Values{1, 2}));
  Tensor& alias = c;
  c = alias;
  EXPECT_EQ(to_doubles(c), (Values{1, 2}));
  EXPECT_FALSE(Tensor(Tensor()));
}

TEST(Tensor, AssignmentKeepsTheMemoryOfEqualShapes) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i64, DType::boolean}) {
    for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 0}, Shape{2, 3, 1}}) {
      Tensor a(dtype, shape), b(dtype, shape);
      fill(b, 1);
      const ConstTensorView view = a;
      a = b;
      EXPECT_EQ(a.view().data(), view.data());
      EXPECT_EQ(to_doubles(view), to_doubles(b));
      fill(b, 0);
      EXPECT_EQ(to_doubles(view), Values(static_cast<std::size_t>(a.numel()), 1));
      a = *&a;
      EXPECT_EQ(to_doubles(view), Values(static_cast<std::size_t>(a.numel()), 1));
      a = std::move(*&a);
      EXPECT_EQ(a.view().data(), view.data());
      EXPECT_EQ(to_doubles(a), Values(static_cast<std::size_t>(a.numel()), 1));
    }
  }
}

TEST(Tensor, AssignmentOfAnotherShapeOrDtypeReplacesTheMemory) {
  const Tensor two = Tensor::of<float>({2}, {1, 2});
  for (Tensor given : {Tensor(), Tensor(DType::f32, {1, 2}), Tensor(DType::f32, {3}), Tensor(DType::f64, {2})}) {
    const Tensor before = Tensor::share(given.view(), given.owner());  // keep the old memory in use, so that the new memory gets another address
    given = two;
    EXPECT_EQ(given.dtype(), DType::f32);
    EXPECT_EQ(given.shape(), (Shape{2}));
    EXPECT_EQ(to_doubles(given), (Values{1, 2}));
    EXPECT_NE(given.view().data(), before.view().data());
    if (before) {
      EXPECT_EQ(to_doubles(before), Values(static_cast<std::size_t>(before.numel()), 0));
    }
  }
  Tensor gone = two;
  gone = Tensor();
  EXPECT_FALSE(gone);
}

TEST(Tensor, AssignmentOfSharedMemory) {
  Tensor all = Tensor::of<float>({5}, {1, 2, 3, 4, 5});
  const auto part = [&](std::int64_t first, std::int64_t step) { return Tensor::share(all.view().slice(0, first, first + 3, step), all.owner()); };
  Tensor rows = part(0, 1), later = part(1, 1);
  rows = later;  // the source overlaps the target
  EXPECT_EQ(to_doubles(all), (Values{2, 3, 4, 4, 5}));
  Tensor reversed = part(0, -1);
  rows = reversed;  // the source is the target's memory in reverse order
  EXPECT_EQ(to_doubles(all), (Values{4, 3, 2, 4, 5}));
  EXPECT_EQ(to_doubles(rows), (Values{4, 3, 2}));
  // The three positions of `repeated` are one element, which cannot hold three different values.
  Tensor repeated = Tensor::share(all.view().slice(0, 0, 1).expand({3}), all.owner());
  repeated = Tensor::copy_of(later);
  EXPECT_EQ(to_doubles(repeated), (Values{3, 2, 4}));
  const Tensor three = Tensor::of<float>({3}, {7, 8, 9});
  Tensor again = Tensor::share(all.view().slice(0, 0, 1).expand({3}), all.owner());
  again = three;
  EXPECT_EQ(to_doubles(again), (Values{7, 8, 9}));
  EXPECT_EQ(to_doubles(all), (Values{4, 3, 2, 4, 5}));
}

TEST(Tensor, MovedFromIsAbsent) {
  Tensor a = Tensor::of<float>({2}, {1, 2});
  const Tensor b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(to_doubles(b), (Values{1, 2}));
  Tensor c = Tensor::of<float>({1}, {3}), d;
  d = std::move(c);
  EXPECT_FALSE(c);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(to_doubles(d), (Values{3}));
}

TEST(Tensor, SharesMemoryThatItsOwnerKeeps) {
  auto memory = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4});
  const std::weak_ptr<std::vector<float>> watch = memory;
  {
    const TensorView every_other(memory->data(), DType::f32, {2}, {2});
    Tensor shared = Tensor::share(every_other, std::move(memory));
    EXPECT_FALSE(watch.expired());
    const Tensor copied = shared;
    shared.data<float>()[0] = 9;
    EXPECT_EQ(to_doubles(shared), (Values{9, 3}));
    EXPECT_EQ(to_doubles(copied), (Values{1, 3}));
    EXPECT_TRUE(copied.view().is_contiguous());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(Tensor, OfCountsItsValues) {
  EXPECT_EQ(error_message([] { Tensor::of<float>({2, 2}, {1, 2, 3}); }), "reshape: [3] has 3 elements, [2,2] has 4");
  EXPECT_EQ(to_doubles(Tensor::of<bool>({3}, {true, false, true})), (Values{1, 0, 1}));
  EXPECT_EQ(Tensor::of<float>({0, 3}, {}).shape(), (Shape{0, 3}));
}

TEST(Copy, ANumberThatDoesNotFitLeavesTheTargetAsItWas) {
  Tensor target = Tensor::of<std::int32_t>({2}, {7, 8});
  const Tensor source = Tensor::of<std::int64_t>({2}, {1, std::int64_t{1} << 40});
  EXPECT_EQ(error_message([&] { copy(source, target); }),
            "copy: 1099511627776 of int64 does not fit in int32");
  EXPECT_EQ(target.data<std::int32_t>()[0], 7);
}

}  // namespace
}  // namespace polyhead
