#include "polyhead/nn/positions.h"

#include <cmath>

#include "support/compare.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::near;
using test::Random;

TEST(SinusoidalPositions, AreTheFormula) {
  Tensor table(DType::f64, {2, 4});
  sinusoidal_positions(table);
  // For width 4 the frequencies are 1 and 10000^(-2/4) = 1/100.
  EXPECT_TRUE(near(table, Tensor::of<double>({2, 4}, {0, 1, 0, 1, std::sin(1), std::cos(1), std::sin(0.01), std::cos(0.01)}), 1e-15));
  Tensor later(DType::f64, {1, 4});
  sinusoidal_positions(later, 1);
  EXPECT_TRUE(near(later, table.view().slice(0, 1, 2), 0));
  Tensor odd(DType::f64, {1, 3});
  sinusoidal_positions(odd, 8, 64);
  EXPECT_TRUE(near(odd, Tensor::of<double>({1, 3}, {std::sin(8), std::cos(8), std::sin(0.5)}), 1e-15));
}

TEST(SinusoidalPositions, AShiftIsARotation) {
  // The pair (sin, cos) at position p + k must be the pair at position p, rotated by k times the frequency ("Attention Is All You Need", section 3.5).
  Tensor table(DType::f64, {30, 2}), later(DType::f64, {30, 2});
  sinusoidal_positions(table);
  sinusoidal_positions(later, 7);
  for (std::int64_t t = 0; t < 30; ++t) {
    const double sine = table.data<double>()[2 * t], cosine = table.data<double>()[2 * t + 1];
    EXPECT_NEAR(later.data<double>()[2 * t], sine * std::cos(7) + cosine * std::sin(7), 1e-14);
  }
}

TEST(SinusoidalPositions, AnyStridesAndDtypes) {
  Random random(1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto out = random.empty_strided(dtype, {5, 6});
    Tensor expected(DType::f64, {5, 6});
    sinusoidal_positions(out, 100);
    sinusoidal_positions(expected, 100);
    EXPECT_TRUE(test::same_bits(out, Tensor::copy_of(expected, dtype)));
    EXPECT_TRUE(out.padding_is_intact());
  }
  EXPECT_EQ(error_message([] { sinusoidal_positions({}); }),
            "sinusoidal_positions: out is float32 []; it must be a floating tensor [T,E]");
}

}  // namespace
}  // namespace polyhead::nn
