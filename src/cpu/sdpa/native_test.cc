// Tests Precision::native, with which the processor multiplies bfloat16 numbers directly. The tests check when it takes effect, and which errors its rounding
// causes. The tests of random problems in this folder use Precision::native too.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "support/kernel_case.h"

namespace polyhead::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kFact = "products: bfloat16 pairs\n";

std::string explanation(const AttentionCase& c, const AttentionOutputs& o) { return explain({.q = c.q, .k = c.k, .v = c.v, .out = o.out}, c.options); }

void run_with(AttentionCase& c, Precision precision, const AttentionOutputs& o) {
  c.options.precision = precision;
  c.run(o);
}

TEST(Native, ServesBfloat16WhereTheInstructionSetHasIt) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    SCOPED_TRACE(info(dtype).name);
    Random random(1);
    AttentionCase c = case_of(random, dtype, {.queries = 30, .keys = 90, .qk_width = 16, .v_width = 16}, &find_backend("cpu"));
    for_each_instruction_set([&] {
      const AttentionOutputs exact = c.make_outputs(), native = c.make_outputs();
      run_with(c, Precision::exact, exact);
      EXPECT_THAT(explanation(c, exact), Not(HasSubstr(kFact)));
      run_with(c, Precision::native, native);
      if (dtype == DType::bf16 && kernel_instruction_set().find("bf16") != std::string_view::npos) {
        EXPECT_THAT(explanation(c, native), HasSubstr(kFact));
        EXPECT_NE(to_doubles(native.out), to_doubles(exact.out));
        EXPECT_NE(to_doubles(native.d_k), to_doubles(exact.d_k));
      } else {
        EXPECT_THAT(explanation(c, native), Not(HasSubstr(kFact)));
        expect_same_bits(native, exact);
      }
    });
  }
}

// On processors without AMX, tests use an emulation of amx_bf16, so the emulation must give the same bits as the hardware. This test is skipped if the machine or
// the build lacks one of the two.
TEST(Native, TheEmulatedTilesHaveTheBitsOfThoseOfTheProcessor) {
  // The emulation must be compiled for AVX512-BF16 (listed in `needs`). An emulation for other instruction sets has other bits.
  const auto available = [](std::string_view name) {
    return std::ranges::any_of(kernel_instruction_sets(), [&](const KernelInstructionSet& set) { return set.name == name && set.available && set.needs.find("avx512_bf16") != std::string_view::npos; });
  };
  if (!available("amx_bf16") || !available("amx_bf16_emulated")) GTEST_SKIP() << "needs a processor with AMX, and a build with -D POLYHEAD_EMULATE_AMX=ON on such a processor";
  for (const std::int64_t queries : {1, 5, 100}) {
    Random random(5);
    AttentionCase c = case_of(random, DType::bf16, {.kv_heads = 2, .queries = queries, .keys = 700, .qk_width = 96, .v_width = 64}, &find_backend("cpu"));
    const AttentionOutputs real = c.make_outputs(), emulated = c.make_outputs();
    set_kernel_instruction_set("amx_bf16"), c.run(real);
    set_kernel_instruction_set("amx_bf16_emulated"), c.run(emulated);
    set_kernel_instruction_set("");
    expect_same_bits(real, emulated);
  }
}

TEST(Native, KeysOfAnotherDtypeAreExact) {
  Random random(2);
  AttentionCase c = case_of(random, DType::bf16, {.queries = 3, .keys = 90, .qk_width = 32, .v_width = 64}, &find_backend("cpu"));
  c.k = c.keep(Tensor::copy_of(c.k, DType::f16)), c.v = c.keep(Tensor::copy_of(c.v, DType::f16));
  for_each_instruction_set([&] {
    const AttentionOutputs exact = c.make_outputs(), native = c.make_outputs();
    c.options.precision = Precision::exact, c.forward(exact);
    c.options.precision = Precision::native, c.forward(native);
    EXPECT_THAT(explanation(c, native), Not(HasSubstr(kFact)));
    expect_same_bits(native, exact);
  });
}

double mean_square_error(ConstTensorView actual, ConstTensorView expected) {
  const std::vector<double> a = to_doubles(actual), e = to_doubles(expected);
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - e[i]) * (a[i] - e[i]);
  return sum / static_cast<double>(a.size());
}

// In a sharp softmax one attention weight is most of the row's sum. Rounding this weight would change the result as much as rounding the result does. The kernels
// therefore scale the exponentials so that the largest is 1, which needs no rounding.
TEST(Native, TheLargestWeightIsExact) {
  for (const std::int64_t queries : {5, 100}) {  // with 5 queries the kernel reads values from the caller's tensor, with 100 it packs them
    Random random(3);
    AttentionCase c = case_of(random, DType::bf16, {.kv_heads = 2, .queries = queries, .keys = 1000, .qk_width = 64, .v_width = 64}, 4);
    AttentionCase wide = in_float64(c);
    const AttentionOutputs expected = reference_forward(wide), exact = c.make_outputs(), native = c.make_outputs();
    c.options.backend = &find_backend("cpu");
    for_each_instruction_set([&] {
      c.options.precision = Precision::exact, c.forward(exact);
      c.options.precision = Precision::native, c.forward(native);
      EXPECT_LT(mean_square_error(native.out, expected.out), 1.1 * mean_square_error(exact.out, expected.out)) << queries;
    });
  }
}

// One key has score 0 and 599 keys have score -b. The exponential exp(-b) lies between two bfloat16 numbers. Without a correction, its rounding would make all
// results too large or too small.
TEST(Native, ARoundingErrorThatAllWeightsShareCancels) {
  double b = 0, worst = 0;
  for (int n = 64; n < 256; ++n) {
    const double weight = std::exp(-n / 256.0), off = std::abs(static_cast<double>(to_float(to_bf16(static_cast<float>(weight)))) / weight - 1);
    if (off > worst) b = n / 256.0, worst = off;
  }
  ASSERT_GT(worst, 0x1p-10);
  for (const std::int64_t queries : {5, 20}) {
    Random random(4);
    AttentionCase c = case_of(random, DType::bf16, {.kv_heads = 8, .queries = queries, .keys = 600, .qk_width = 32, .v_width = 64});
    Tensor q(DType::bf16, c.sizes.q()), k(DType::bf16, c.sizes.k());
    fill(q.view().slice(-1, 0, 1), 1), fill(k.view().slice(-1, 0, 1).slice(-2, 1, 600), -b);
    c.q = q, c.k = k, c.v = c.keep(random.tensor(DType::bf16, c.sizes.v(), 1, 2));
    c.options.scale = 1;
    AttentionCase wide = in_float64(c);
    const std::vector<double> expected = to_doubles(reference_forward(wide).out);
    c.options.backend = &find_backend("cpu");
    for_each_instruction_set([&] {
      const AttentionOutputs o = c.make_outputs();
      c.forward(o);
      const std::vector<double> out = to_doubles(o.out);
      double bias = 0;
      for (std::size_t i = 0; i < out.size(); ++i) bias += out[i] / expected[i] - 1;
      EXPECT_LT(std::abs(bias) / static_cast<double>(out.size()), worst / 8) << queries;
    });
  }
}

double error_in_norm(ConstTensorView actual, ConstTensorView expected) {
  const std::vector<double> e = to_doubles(expected);
  double sum = 0;
  for (const double x : e) sum += x * x;
  return std::sqrt(mean_square_error(actual, expected) * static_cast<double>(e.size()) / sum);
}

// Tests the error of gradients for sizes that are whole tiles and sizes that are not, with several key blocks and several double strips of 32 rows.
TEST(Native, GradientsHaveTheErrorOfTheirRoundings) {
  for (const std::int64_t rows : {224, 203}) {
    for (const std::int64_t width : {64, 96, 40}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << width << " wide");
      Random random(6);
      AttentionCase c = case_of(random, DType::bf16, {.kv_heads = 1, .queries = rows, .keys = rows + 352, .qk_width = width, .v_width = width});
      AttentionCase wide = in_float64(c);
      const AttentionOutputs expected = reference_run(wide);
      c.options.backend = &find_backend("cpu");
      for_each_instruction_set([&] {
        const AttentionOutputs o = c.make_outputs();
        c.run(o);
        for (const auto& [actual, exact] : {std::pair(o.d_q, expected.d_q), std::pair(o.d_k, expected.d_k), std::pair(o.d_v, expected.d_v)}) EXPECT_LT(error_in_norm(actual, exact), 3.5e-3);
      });
    }
  }
}

// If a row of q or d_out is not finite, the products that sum over rows use zeros for the row. Afterwards the row is added to the gradients of the keys that it
// attends to.
TEST(Native, ANonFiniteRowReachesOnlyItsKeys) {
  constexpr std::int64_t kRows = 96, kRow = 37;
  for (const bool in_q : {true, false}) {
    Random random(7);
    AttentionCase c = case_of(random, DType::bf16, {.kv_heads = 1, .queries = kRows, .keys = kRows, .qk_width = 64, .v_width = 64});
    Tensor copy = Tensor::copy_of(in_q ? c.q : c.d_out);
    fill(copy.view().slice(-2, kRow, kRow + 1), std::nan(""));
    (in_q ? c.q : c.d_out) = c.keep(std::move(copy));
    c.options.mask.causal = Causal::top_left();
    c.options.backend = &find_backend("cpu");
    for_each_instruction_set([&] {
      const AttentionOutputs o = c.make_outputs();
      c.run(o);
      const std::vector<double> d_k = to_doubles(o.d_k), d_v = to_doubles(o.d_v);
      for (std::int64_t key = 0; key < kRows; ++key) {
        EXPECT_EQ(std::isnan(d_k[static_cast<std::size_t>(key * 64)]), key <= kRow) << key;
        EXPECT_EQ(std::isnan(d_v[static_cast<std::size_t>(key * 64)]), key <= kRow) << key;
      }
    });
  }
}

}  // namespace
}  // namespace polyhead::test
