// Compares kernels of every instruction set with the reference, within the error bounds of the arithmetic.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/device.h"
#include "polyhead/maps.h"
#include "support/compare_outputs.h"
#include "support/seeds.h"

namespace polyhead::test {

template <class F>
void with_instruction_set(std::string_view name, const F& f) {
  SCOPED_TRACE(std::string(name));
  set_kernel_instruction_set(name);
  f();
  set_kernel_instruction_set("");
}

// Runs f with the kernels of each instruction set that the machine has.
template <class F>
void for_each_instruction_set(const F& f) {
  for (const KernelInstructionSet& set : kernel_instruction_sets()) {
    if (set.available) with_instruction_set(set.name, f);
    if (testing::Test::HasFailure()) return;
  }
}

// Returns the instruction set that the machine chooses.
inline std::string chosen_instruction_set() {
  const std::string now(kernel_instruction_set());
  set_kernel_instruction_set("");
  const std::string chosen(kernel_instruction_set());
  set_kernel_instruction_set(now);
  return chosen;
}

// Runs f with each instruction set that has its own kernels for the dtype. A set with bf16 in its name has its own kernels for bfloat16 only; for other dtypes
// its kernels are those of another set (cmake/isa.cmake). So f runs with such a set only for bfloat16, or if the machine chooses this set.
template <class F>
void for_each_instruction_set(DType dtype, const F& f) {
  const std::string chosen = chosen_instruction_set();
  for_each_instruction_set([&] {
    const std::string_view set = kernel_instruction_set();
    if (dtype == DType::bf16 || set == chosen || set.find("bf16") == std::string_view::npos) f();
  });
}

// Runs f for one case of a sweep over seeds. Without quick(), runs f with each instruction set. With quick(), runs f with two sets, which saves time: the set
// that the machine chooses tests the code that all sets share, and one of the other sets, chosen by the seed, tests its own code, which is short.
template <class F>
void for_each_instruction_set(std::uint64_t seed, const F& f) {
  if (!quick()) return for_each_instruction_set(f);
  const std::string chosen = chosen_instruction_set();
  std::vector<std::string> others;
  for (const KernelInstructionSet& set : kernel_instruction_sets())
    if (set.available && set.name != chosen) others.emplace_back(set.name);
  with_instruction_set(chosen, f);
  if (others.empty() || testing::Test::HasFailure()) return;
  // seed / others.size() is added because the dtype of a case also changes with the seed: without it, a set would be tested with only some of the dtypes.
  with_instruction_set(others[(seed + seed / others.size()) % others.size()], f);
}

// Runs f with each instruction set or, for the backend `reference`, which has no kernels, once.
template <class F>
void for_each_instruction_set(const Backend* backend, const F& f) {
  if (backend == &find_backend("reference")) return f();
  for_each_instruction_set(f);
}

template <class F>
void for_each_instruction_set(const Backend* backend, DType dtype, const F& f) {
  if (backend == &find_backend("reference")) return f();
  for_each_instruction_set(dtype, f);
}

// Returns the numbers of threads with which a test runs one case of a sweep. They are all `counts`, except with quick() and a set that the machine does not
// choose: then they are the first and one other, chosen by the seed. This suffices, because all sets share the code that divides work among threads.
inline std::vector<int> thread_counts(std::uint64_t seed, const std::vector<int>& counts) {
  if (!quick() || kernel_instruction_set() == chosen_instruction_set()) return counts;
  return {counts[0], counts[1 + (seed / 2) % (counts.size() - 1)]};
}

double epsilon(DType dtype);

inline double storage_rounding(DType dtype) { return info(dtype).size == 2 ? 0x1.01p0 * unit_roundoff(dtype) : 0; }

// Returns true if the kernels may use the processor's bfloat16 products.
bool is_native(const AttentionCase& c);

// Returns the factor by which dropout multiplies the attention weights that it keeps.
inline double kept_factor(const Dropout& dropout) { return dropout.p > 0 && dropout.p < 1 ? 1 / (1 - dropout.p) : 1; }

double largest_distance(const AttentionCase& c);

double largest_relative_bias(const AttentionCase& c);

// The tolerances of results. Output: |error| <= 8 eps (4 + sqrt(S) + L) sum_s p |v|, with L the largest scale * sum |q k|, plus one rounding to the dtype of
// `out`. L and sum p |v| are bounded by means of the largest elements of the inputs.
// Gradient: 8 eps (4 + sqrt(S) + L) times the sum of the gradient's largest element and the most that one pair can add to the gradient.
// The expected result must not be rounded to 16 bits (see in_float64()): two rounded results may differ by one unit in the last place, twice the error of one
// rounding, even if they differed little before.
struct Tolerances {
  double relative, out, lse, d_q, d_k, d_v, d_bias, d_sink, d_relative_bias;

  explicit Tolerances(const AttentionCase& c);
};

AttentionOutputs reference_forward(AttentionCase& c);

// Runs the backward pass alone, from the out and lse of a forward pass.
void backward_from(const AttentionCase& c, const AttentionOutputs& forward, const AttentionOutputs& o);

AttentionOutputs reference_backward(AttentionCase& c, const AttentionOutputs& forward);

inline AttentionOutputs reference_run(AttentionCase& c) { return reference_backward(c, reference_forward(c)); }

// Returns the same problem in float64: every floating tensor, and the values of int8 tensors, are converted, which is exact.
AttentionCase in_float64(const AttentionCase& c);

void expect_forward_near(const AttentionOutputs& actual, const AttentionOutputs& expected, const Tolerances& t);

// Compares all gradients. d_bias, d_sink and d_relative_bias are compared only if the case has them.
void expect_gradients_near(const AttentionOutputs& actual, const AttentionOutputs& expected, const Tolerances& t);

Tensor reference_map(AttentionCase& c, const MapsInput& input, MapValue value);

// Draws sizes near multiples of the kernels' vector and tile sizes.
AttentionSizes draw_block_sizes(Random& random);

// Draws sizes that sometimes exceed a block of 512 keys or 768 queries.
AttentionSizes draw_long_sizes(Random& random);

inline constexpr std::array kDTypes{DType::f32, DType::f32, DType::f64, DType::bf16, DType::f16};

// Returns a random case for tests of kernels. One case in 24 is long. Long cases of all dtypes occur, because 24 and the number of dtypes (5) have no common
// factor.
AttentionCase draw_kernel_case(Random& random, std::uint64_t seed);

}  // namespace polyhead::test
