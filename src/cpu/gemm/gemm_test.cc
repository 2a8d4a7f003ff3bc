#include "cpu/gemm/gemm.h"

#include "core/index.h"
#include "polyhead/device.h"
#include "support/compare.h"
#include "support/random.h"
#include "support/seeds.h"
#include "support/thread_count.h"

namespace polyhead::cpu {
namespace {

using test::near;
using test::Random;
using test::same_bits;
using test::StridedTensor;
using test::ThreadCount;
using test::to_doubles;
using test::unit_roundoff;

// Compares every element with the sum in float64. The tolerance is the error bound of a sum with depth + 3 roundings in the accumulator's precision (Higham
// 2002, section 3.1) plus one rounding to the dtype of c. For float64 the tolerance is doubled, because the expected value has the same error.
testing::AssertionResult is_product(const Gemm& product, ConstTensorView before, ConstTensorView result) {
  const auto a = to_doubles(product.a), b = to_doubles(product.b), c = to_doubles(before), y = to_doubles(result);
  const auto bias = product.bias ? to_doubles(product.bias) : std::vector<double>{};
  const auto depth = static_cast<std::size_t>(numel(product.a.shape().last(product.k_axes)));
  const auto columns = static_cast<std::size_t>(numel(product.b.shape().last(product.b.rank() - product.k_axes)));
  const DType dtype = product.a.dtype();
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t m = i / columns, n = i % columns;
    const test::ProductSum products = test::sum_of_products(a.data() + m * depth, b.data() + n, columns, depth);
    double sum = products.sum, size = products.size;
    if (product.bias) sum += bias[n], size += std::abs(bias[n]);
    if (product.add) {
      sum += c[i];
      size += std::abs(c[i]);
    }
    const double roundings = 1.01 * static_cast<double>(depth + 3) * (dtype == DType::f64 ? 2 : 1);
    const double tolerance = roundings * unit_roundoff(accumulation_dtype(dtype)) * size + 1.01 * unit_roundoff(dtype) * std::abs(sum) +
                             (dtype == DType::f16 ? 0x1p-25 : 0);  // half the distance of two subnormal float16 numbers
    if (!(std::abs(y[i] - sum) <= tolerance)) {
      return testing::AssertionFailure() << test::position(result.shape(), static_cast<std::int64_t>(i)) << " is " << y[i] << ", expected "
                                         << sum << " within " << tolerance;
    }
  }
  return testing::AssertionSuccess();
}

// These tests run once for each instruction set that the machine has.
class GemmKernel : public testing::TestWithParam<std::string> {
 protected:
  GemmKernel() { set_kernel_instruction_set(GetParam()); }
  ~GemmKernel() override { set_kernel_instruction_set(""); }
};

std::vector<std::string> usable_sets() {
  std::vector<std::string> names;
  for (const KernelInstructionSet& set : kernel_instruction_sets()) {
    if (set.available) names.emplace_back(set.name);
  }
  return names;
}

// A set whose name contains bf16 multiplies bfloat16 pairs, and has the kernels of its base set for other dtypes (cmake/isa.cmake). With quick() these kernels
// are tested for the base set alone. RandomShapesLayoutsAndDtypes tests every set with every dtype.
bool has_own_kernels(DType dtype) { return !test::quick() || dtype == DType::bf16 || kernel_instruction_set().find("bf16") == std::string_view::npos; }

INSTANTIATE_TEST_SUITE_P(Sets, GemmKernel, testing::ValuesIn(usable_sets()), [](const auto& row) { return row.param; });

TEST_P(GemmKernel, RandomShapesLayoutsAndDtypes) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const DType dtype = random.pick({DType::f32, DType::f64, DType::bf16, DType::f16});
    const auto side = [&] {
      Shape shape;
      for (std::int64_t axes = random.integer(0, 3); axes > 0; --axes) shape.push_back(random.pick<std::int64_t>({0, 1, 2, 3, 5, 7, 8, 9, 13}));
      return shape;
    };
    const Shape m = side(), k = side(), n = side();
    const StridedTensor a = random.strided(dtype, appended(m, k)), b = random.strided(dtype, appended(k, n));
    const StridedTensor c = random.strided(dtype, appended(m, n)), bias = random.strided(dtype, n);
    const Gemm product{.a = a,
                       .b = b,
                       .c = c,
                       .bias = random.coin() ? ConstTensorView(bias) : ConstTensorView(),
                       .k_axes = k.size(),
                       .add = random.coin()};
    const Tensor before = Tensor::copy_of(c);
    gemm(product);
    EXPECT_TRUE(is_product(product, before, c)) << to_string(m) << to_string(k) << to_string(n) << info(dtype).name;
    EXPECT_TRUE(c.padding_is_intact());
  }
}

TEST_P(GemmKernel, SizesAroundEveryBlock) {
  Random random(1);
  for (const DType dtype : {DType::f32, DType::f64}) {
    if (!has_own_kernels(dtype)) continue;
    for (const auto& [m, k, n] : std::initializer_list<std::array<std::int64_t, 3>>{{95, 17, 3},
                                                                                    {97, 63, 47},
                                                                                    {5, 64, 48},
                                                                                    {6, 65, 49},
                                                                                    {7, 383, 15},
                                                                                    {8, 384, 16},
                                                                                    {9, 385, 33},
                                                                                    {193, 3, 513},
                                                                                    {11, 1024, 31},
                                                                                    {100, 1025, 17},
                                                                                    {12, 127, 31},
                                                                                    {13, 129, 33},
                                                                                    {23, 256, 64},
                                                                                    {3, 2500, 97},
                                                                                    {100, 2049, 40},
                                                                                    {14, 768, 20},
                                                                                    {25, 769, 33},
                                                                                    {98, 1153, 35},
                                                                                    {97, 2305, 33},
                                                                                    {110, 1024, 140},
                                                                                    {2100, 2050, 40}}) {
      SCOPED_TRACE(testing::Message() << m << " x " << k << " x " << n << " " << info(dtype).name);
      const Tensor a = random.tensor(dtype, {m, k}), b = random.tensor(dtype, {k, n});
      const StridedTensor c = random.empty_strided(dtype, {m, n});
      const Gemm product{.a = a, .b = b, .c = c};
      gemm(product);
      // The rows of c are independent of one another. If there are many rows, only the first, the last and some in the middle are compared.
      constexpr std::int64_t kRows = 50;
      for (const std::int64_t first : m <= 4 * kRows ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{0, random.integer(kRows, m - 2 * kRows), m - kRows}) {
        const std::int64_t end = m <= 4 * kRows ? m : first + kRows;
        const Gemm part{.a = a.view().slice(0, first, end), .b = b, .c = TensorView(c).slice(0, first, end)};
        EXPECT_TRUE(is_product(part, during_call(Tensor(dtype, {end - first, n})), part.c));
      }
      EXPECT_TRUE(c.padding_is_intact());
    }
  }
}

// Tests sizes near multiples of the sizes of the AMX kernel: tiles of 16 rows, 16 columns and 32 terms, blocks of 32 x 32, and sums of at most 4096 terms.
TEST_P(GemmKernel, SizesAroundEveryTileOfBfloat16) {
  Random random(10);
  for (const auto& [m, k, n] : std::initializer_list<std::array<std::int64_t, 3>>{{1, 1, 1},
                                                                                  {2, 2, 40},
                                                                                  {3, 31, 15},
                                                                                  {15, 32, 16},
                                                                                  {16, 33, 17},
                                                                                  {17, 63, 31},
                                                                                  {31, 64, 32},
                                                                                  {32, 65, 33},
                                                                                  {33, 96, 47},
                                                                                  {47, 95, 48},
                                                                                  {48, 97, 49},
                                                                                  {49, 128, 64},
                                                                                  {65, 3, 65},
                                                                                  {1, 200, 97},
                                                                                  {97, 200, 1},
                                                                                  {20, 4096, 20},
                                                                                  {35, 4097, 34},
                                                                                  {5, 8193, 70},
                                                                                  {530, 40, 35},
                                                                                  {40, 40, 530},
                                                                                  {1030, 33, 17}}) {
    // Bits 0 and 1 of `order` say whether a and b are transposed in memory. A linear layer has products of three of these orders.
    for (const int order : {0, 1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << m << " x " << k << " x " << n << ", order " << order);
      const auto matrix = [&](std::int64_t rows, std::int64_t columns, bool transposed) {
        return transposed ? random.tensor(DType::bf16, {columns, rows}) : random.tensor(DType::bf16, {rows, columns});
      };
      const bool a_transposed = (order & 1) != 0, b_transposed = (order & 2) != 0;
      const Tensor a = matrix(m, k, a_transposed), b = matrix(k, n, b_transposed), bias = random.tensor(DType::bf16, {n});
      const StridedTensor c = order == 3 ? random.strided(DType::bf16, {m, n}) : random.strided_copy(during_call(random.tensor(DType::bf16, {m, n})));
      const Gemm product{.a = a_transposed ? a.view().transpose(0, 1) : a.view(),
                         .b = b_transposed ? b.view().transpose(0, 1) : b.view(),
                         .c = c,
                         .bias = random.coin() ? ConstTensorView(bias) : ConstTensorView(),
                         .add = random.coin()};
      const Tensor before = Tensor::copy_of(c);
      Tensor contiguous = Tensor::copy_of(c), packed_c = Tensor::copy_of(c);
      gemm(product);
      EXPECT_TRUE(is_product(product, before, c));
      EXPECT_TRUE(c.padding_is_intact());
      Gemm other = product;
      other.c = contiguous;
      gemm(other);
      EXPECT_TRUE(same_bits(contiguous, c.view())) << "other strides of c";
      const PackedMatrix packed(product.b);
      other.c = packed_c, other.packed = &packed;
      gemm(other);
      EXPECT_TRUE(same_bits(packed_c, c.view())) << "packed";
    }
  }
}

// With AMX, few rows of y = x W^T are computed as y^T = W x^T, which must give the same bits as many rows.
TEST_P(GemmKernel, BitsOfARowDoNotDependOnHowManyRowsThereAre) {
  Random random(11);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t depth : {5, 64, 333, 4100}) {
      const Tensor x = random.tensor(dtype, {90, depth}), weight = random.tensor(dtype, {100, depth}), bias = random.tensor(dtype, {100});
      const ConstTensorView b = weight.view().transpose(0, 1);
      Tensor expected(dtype, {90, 100});
      gemm({.a = x, .b = b, .c = expected, .bias = bias});
      for (const std::int64_t rows : {1, 2, 16, 17, 33, 50}) {
        Tensor c(dtype, {rows, 100});
        gemm({.a = x.view().slice(0, 3, 3 + rows), .b = b, .c = c, .bias = bias});
        EXPECT_TRUE(same_bits(c, expected.view().slice(0, 3, 3 + rows))) << rows << " of " << depth << " terms " << info(dtype).name;
      }
    }
  }
}

TEST_P(GemmKernel, BitsDoNotDependOnThreadsLayoutOrNeighbours) {
  Random random(2);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Tensor a = random.tensor(dtype, {13, 20, 400}), b = random.tensor(dtype, {400, 300}), bias = random.tensor(dtype, {300});
    Tensor expected(dtype, {13, 20, 300});
    {
      const ThreadCount one(1);
      gemm({.a = a, .b = b, .c = expected, .bias = bias});
    }
    for (const int threads : {2, 3, 8}) {
      const ThreadCount several(threads);
      Tensor c(dtype, expected.shape());
      gemm({.a = a, .b = b, .c = c, .bias = bias});
      EXPECT_TRUE(same_bits(c, expected)) << threads << " threads";
    }
    const StridedTensor c = random.empty_strided(dtype, expected.shape());
    gemm({.a = random.strided_copy(a), .b = random.strided_copy(b), .c = c, .bias = random.strided_copy(bias)});
    EXPECT_TRUE(same_bits(c.view(), expected)) << "other strides";
    // One row alone, and a few columns alone, must have the bits of the whole product.
    Tensor row(dtype, {300}), columns(dtype, {13, 20, 5});
    gemm({.a = a.view().select(0, 4).select(0, 7), .b = b, .c = row, .bias = bias});
    EXPECT_TRUE(same_bits(row, expected.view().select(0, 4).select(0, 7)));
    gemm({.a = a, .b = b.view().slice(1, 101, 106), .c = columns, .bias = bias.view().slice(0, 101, 106)});
    EXPECT_TRUE(same_bits(columns, expected.view().slice(2, 101, 106)));
  }
}

TEST_P(GemmKernel, PackedOnceGivesTheSameBits) {
  Random random(8);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    if (!has_own_kernels(dtype)) continue;
    for (const std::int64_t depth : {0, 70, 2100, 4500}) {
      const Tensor weight = random.tensor(dtype, {75, depth});
      const PackedMatrix packed(weight.view().transpose(0, 1));
      for (const std::int64_t rows : {1, 12, 200}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << depth << " x 75 " << info(dtype).name);
        const Tensor a = random.tensor(dtype, {rows, depth});
        Tensor c(dtype, {rows, 75}), expected(dtype, {rows, 75});
        gemm({.a = a, .b = weight.view().transpose(0, 1), .c = expected});
        gemm({.a = a, .b = weight.view().transpose(0, 1), .c = c, .packed = &packed});
        EXPECT_TRUE(same_bits(c, expected));
      }
    }
  }
}

TEST_P(GemmKernel, PackedForAnotherInstructionSetIsNotUsed) {
  Random random(9);
  const Tensor a = random.tensor(DType::f32, {20, 50}), b = random.tensor(DType::f32, {50, 75});
  const PackedMatrix packed(b);
  for (const std::string& set : usable_sets()) {
    set_kernel_instruction_set(set);
    Tensor c(DType::f32, {20, 75});
    const Gemm product{.a = a, .b = b, .c = c, .packed = &packed};
    gemm(product);
    EXPECT_TRUE(is_product(product, during_call(Tensor(DType::f32, {20, 75})), c)) << "packed for " << GetParam() << ", multiplied with " << set;
  }
}

TEST_P(GemmKernel, TheProductsOfALinearMap) {
  Random random(4);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const std::int64_t rows : {1, 7, 50, 203}) {
      const Tensor x = random.tensor(dtype, {rows, 75}), d_y = random.tensor(dtype, {rows, 101}), weight = random.tensor(dtype, {101, 75});
      const StridedTensor y = random.empty_strided(dtype, {rows, 101}), d_x = random.strided(dtype, {rows, 75}), d_weight = random.empty_strided(dtype, {101, 75});
      const Tensor before = Tensor::copy_of(d_x);
      const Gemm forward{.a = x, .b = weight.view().transpose(0, 1), .c = y}, to_x{.a = d_y, .b = weight, .c = d_x, .add = true},
          to_weight{.a = d_y.view().transpose(0, 1), .b = x, .c = d_weight};
      for (const Gemm* product : {&forward, &to_x, &to_weight}) {
        gemm(*product);
        const Tensor start = product->add ? before : Tensor(dtype, product->c.shape());
        EXPECT_TRUE(is_product(*product, start, product->c)) << rows << info(dtype).name;
      }
    }
  }
}

// The rows of a are two axes of a slice, and no single stride describes them. Tiles of this a are copied. Tiles of a contiguous copy of the slice are read in
// place, and must give the same bits.
TEST_P(GemmKernel, RowsOfASliceAreThoseOfItsCopy) {
  Random random(13);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t length : {11, 16, 37}) {
      const Tensor whole = random.tensor(dtype, {3, length + 2, 70}), b = random.tensor(dtype, {70, 40});
      const ConstTensorView slice = ConstTensorView(whole).slice(1, 1, 1 + length);
      Tensor c(dtype, {3, length, 40}), expected(dtype, {3, length, 40});
      gemm({.a = slice, .b = b, .c = c});
      gemm({.a = during_call(Tensor::copy_of(slice)), .b = b, .c = expected});
      EXPECT_TRUE(same_bits(c, expected)) << length;
    }
  }
}

// A projection writes its result in the layout that attention reads, [B,N,T,H]: rows are [B,T] and columns [N,H].
TEST_P(GemmKernel, HeadsAreWrittenInPlace) {
  Random random(5);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t width : {5, 16, 24, 64}) {
      const Tensor x = random.tensor(dtype, {2, 9, 33}), weight = random.tensor(dtype, {33, 3, width}), bias = random.tensor(dtype, {3, width});
      Tensor heads(dtype, {2, 3, 9, width}), flat(dtype, {2, 9, 3, width});
      gemm({.a = x, .b = weight, .c = heads.view().transpose(1, 2), .bias = bias});
      gemm({.a = x, .b = weight, .c = flat, .bias = bias});
      EXPECT_TRUE(same_bits(heads.view().transpose(1, 2), flat));
      EXPECT_TRUE(is_product({.a = x, .b = weight, .c = flat, .bias = bias}, during_call(Tensor(dtype, flat.shape())), flat));
    }
  }
}

TEST_P(GemmKernel, LongSumsHaveTheSameBitsForAnyThreadsAndRows) {
  Random random(6);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (!has_own_kernels(dtype)) continue;
    const Tensor a = random.tensor(dtype, {250, 4170}), b = random.tensor(dtype, {4170, 70});
    Tensor expected(dtype, {250, 70}), row(dtype, {70});
    {
      const ThreadCount one(1);
      gemm({.a = a, .b = b, .c = expected});
    }
    for (const int threads : {2, 3}) {
      const ThreadCount several(threads);
      Tensor c(dtype, expected.shape());
      gemm({.a = a, .b = b, .c = c});
      EXPECT_TRUE(same_bits(c, expected)) << threads << " threads";
      // If `a` is transposed in memory, the kernel copies it (Layout::panels, copy_tile_of_adjacent_rows).
      gemm({.a = during_call(Tensor::copy_of(a.view().transpose(0, 1))).view().transpose(0, 1), .b = b, .c = c});
      EXPECT_TRUE(same_bits(c, expected));
    }
    gemm({.a = a.view().select(0, 249), .b = b, .c = row});
    EXPECT_TRUE(same_bits(row, expected.view().select(0, 249)));
  }
}

TEST_P(GemmKernel, NonFiniteFactorsReachOnlyTheirRowOrColumn) {
  Random random(7);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const double bad : {test::kNaN, test::kInfinity}) {
      for (const bool transposed : {false, true}) {  // if b is transposed in memory, AMX computes few rows as c^T = b^T a^T
        for (const std::int64_t rows : {19, 47}) {
          Tensor a = random.tensor(dtype, {rows, 70}), b = random.tensor(dtype, transposed ? Shape{53, 70} : Shape{70, 53}), c(dtype, {rows, 53});
          const TensorView b_view = transposed ? b.view().transpose(0, 1) : b.view();
          fill(a.view().slice(0, rows - 1, rows).slice(1, 69, 70), bad);
          fill(b_view.slice(0, 3, 4).slice(1, 52, 53), bad);
          fill(b_view.slice(0, 69, 70).slice(1, 50, 51), bad);
          gemm({.a = a, .b = b_view, .c = c});
          const std::vector<double> result = to_doubles(c);
          for (std::size_t i = 0; i < result.size(); ++i) {
            EXPECT_EQ(std::isfinite(result[i]), static_cast<std::int64_t>(i / 53) != rows - 1 && i % 53 != 52 && i % 53 != 50) << i << info(dtype).name;
          }
        }
      }
    }
  }
}

// AMX takes numbers below 2^-126 as 0. The other instruction sets multiply them exactly.
TEST_P(GemmKernel, SubnormalFactorsOfBfloat16CountAsZeroInTilesOnly) {
  Tensor a(DType::bf16, {20, 40}), b(DType::bf16, {40, 20}), c(DType::bf16, {20, 20});
  fill(a, 0x1p-130);
  fill(b, 0x1p100);
  gemm({.a = a, .b = b, .c = c});
  for (const double x : to_doubles(c)) EXPECT_EQ(x, GetParam().starts_with("amx") ? 0 : 40 * 0x1p-30);
}

// On processors without AMX, tests use an emulation of AMX, so the emulation must give the same bits as the hardware.
TEST(Gemm, TheEmulatedTilesHaveTheBitsOfThoseOfTheProcessor) {
  const std::vector<std::string> sets = usable_sets();
  const auto available = [&](const char* name) { return std::ranges::find(sets, name) != sets.end(); };
  if (!available("amx_bf16") || !available("amx_bf16_emulated")) GTEST_SKIP() << "needs a processor with AMX and -D POLYHEAD_EMULATE_AMX=ON";  // without both sets there is nothing to compare
  Random random(12);
  for (const std::int64_t depth : {7, 64, 300, 4200}) {
    const Tensor a = random.tensor(DType::bf16, {70, depth}), b = random.tensor(DType::bf16, {depth, 50});
    Tensor real(DType::bf16, {70, 50}), emulated(DType::bf16, {70, 50});
    set_kernel_instruction_set("amx_bf16");
    gemm({.a = a, .b = b, .c = real});
    set_kernel_instruction_set("amx_bf16_emulated");
    gemm({.a = a, .b = b, .c = emulated});
    set_kernel_instruction_set("");
    EXPECT_TRUE(same_bits(real, emulated)) << depth;
  }
}

TEST(Gemm, BroadcastOperandsByZeroStrides) {
  const Tensor a = Tensor::of<float>({2}, {3, 5}), b = Tensor::of<float>({2, 1}, {1, 10});
  Tensor c(DType::f32, {4, 3});
  gemm({.a = a.view().expand({4, 2}), .b = b.view().expand({2, 3}), .c = c});
  for (const double x : to_doubles(c)) EXPECT_EQ(x, 53);
}

TEST(Gemm, SumOfNoTermsIsTheBias) {
  Tensor c = Tensor::of<double>({2, 1}, {7, 8});
  const Tensor none(DType::f64, {2, 0}), nothing(DType::f64, {0, 1}), half = Tensor::of<double>({1}, {0.5});
  gemm({.a = none, .b = nothing, .c = c, .bias = half, .add = true});
  EXPECT_TRUE(same_bits(c, Tensor::of<double>({2, 1}, {7.5, 8.5})));
  gemm({.a = none, .b = nothing, .c = c});
  EXPECT_TRUE(same_bits(c, Tensor(DType::f64, {2, 1})));
}

TEST(Gemm, NaNReachesOnlyItsRowOrColumn) {
  const float nan = std::nanf("");
  Tensor a(DType::f32, {7, 3}), c(DType::f32, {7, 9});
  fill(a, 1);
  a.data<float>()[4 * 3 + 1] = nan;
  gemm({.a = a, .b = during_call(Random(3).tensor(DType::f32, {3, 9})), .c = c});
  for (std::int64_t row = 0; row < 7; ++row) {
    for (const double x : to_doubles(c.view().select(0, row))) EXPECT_EQ(std::isnan(x), row == 4);
  }
}

TEST(Gemm, WrongShapesAreErrors) {
  Tensor c(DType::f32, {2, 4});
  const Tensor a(DType::f32, {2, 3}), b(DType::f32, {3, 4});
  EXPECT_EQ(test::error_message([&] { gemm({.a = b, .b = b, .c = c}); }), "gemm: a [3,4] times b [3,4] over 1 axes does not give c [2,4]");
  EXPECT_EQ(test::error_message([&] { gemm({.a = a, .b = b, .c = c, .bias = a}); }),
            "gemm: bias [2,3] does not match the columns of b [3,4]");
  EXPECT_NE(test::error_message([&] { gemm({.a = a, .b = during_call(Tensor(DType::f64, {3, 4})), .c = c}); }), "");
  EXPECT_NE(test::error_message([&] { gemm({.a = a, .b = b, .c = c, .k_axes = 3}); }), "");
}

}  // namespace
}  // namespace polyhead::cpu
