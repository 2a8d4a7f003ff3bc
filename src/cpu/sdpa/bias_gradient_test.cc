// Tests d_bias with a separate element for every pair (query, key). The kernels write d_bias without setting it to zero first, so an element that no task writes
// would keep its old value.
#include <gtest/gtest.h>

#include "support/case_part.h"
#include "support/kernel_case.h"
#include "support/thread_count.h"

namespace polyhead::test {
namespace {

// Returns a case with two blocks of 96 rows, and two blocks of 256 keys (in float64, three blocks of 128 keys). The last blocks are not full.
AttentionCase biased_case(Random& random, DType dtype) {
  AttentionCase c = case_of(random, dtype, {.lead = {2}, .queries = 110, .keys = 290, .qk_width = 5, .v_width = 3});
  c.options.bias = c.keep(random.strided(dtype, c.sizes.pairs()));
  return c;
}

struct Rule {
  const char* name;
  void (*apply)(AttentionCase& c, Random& random);
};

const Rule kRules[] = {
    {"none", [](AttentionCase&, Random&) {}},
    {"causal, most blocks empty", [](AttentionCase& c, Random&) { c.options.mask.causal = Causal::top_left(); }},
    {"causal, first rows empty", [](AttentionCase& c, Random&) { c.options.mask.causal = Causal::offset(-70); }},
    {"no row has a key", [](AttentionCase& c, Random&) { c.options.mask.causal = Causal::offset(-1000); }},
    {"window", [](AttentionCase& c, Random&) { c.options.mask.window = {.left = 20, .right = 1}; }},
    {"lengths", [](AttentionCase& c, Random&) { c.options.mask.key_lengths = c.keep(Tensor::of<std::int64_t>({2}, {0, 200})); }},
    {"lengths of queries",
     [](AttentionCase& c, Random& random) { c.options.mask.key_lengths = c.keep(random.strided(DType::i64, {2, 110}, 0, 290)); }},
    {"uniform empty rows",
     [](AttentionCase& c, Random&) {
       c.options.mask.causal = Causal::offset(-70);
       c.options.empty_rows = EmptyRows::uniform;
     }},
    {"boolean mask, rows without keys, NaN in a key that no row attends to, softcap and dropout",
     [](AttentionCase& c, Random& random) {
       const TensorView attend = c.keep(random.tensor(DType::boolean, {110, 290}));
       fill(attend.slice(0, 7, 30), 0);
       fill(attend.slice(1, 280, 281), 0);
       c.options.mask.attend = attend;
       const TensorView k = c.keep(Tensor::copy_of(c.k)), v = c.keep(Tensor::copy_of(c.v));
       fill(k.slice(-2, 280, 281), kNaN);
       fill(v.slice(-2, 280, 281), kNaN);
       c.k = k, c.v = v;
       c.options.softcap = 2;
       c.options.dropout = {.p = 0.25, .seed = 4};
     }},
};

TEST(CpuBiasGradient, EveryElementIsWrittenWhateverTheMemoryHeld) {
  const ThreadCount restored;
  for (const Rule& rule : kRules) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      SCOPED_TRACE(rule.name);
      SCOPED_TRACE(std::string(info(dtype).name));
      Random random(8);
      AttentionCase c = biased_case(random, dtype);
      rule.apply(c, random);
      const AttentionOutputs expected = reference_run(c);
      const Tolerances t(c);
      const double tolerance = t.relative * largest_magnitude(expected.d_bias) + (std::isfinite(t.d_bias) ? t.d_bias : 1e-2);
      for_each_instruction_set([&] {
        std::vector<AttentionOutputs> runs;
        for (const bool strided : {false, true}) {
          for (const int count : {1, 2}) {
            set_num_threads(count);
            runs.push_back(c.make_outputs(strided ? &random : nullptr));
            const AttentionOutputs& o = runs.back();
            fill(o.d_bias, kNaN);
            backward_from(c, expected, o);
            EXPECT_TRUE(near(o.d_bias, expected.d_bias, tolerance)) << count;
            EXPECT_TRUE(same_bits(o.d_bias, runs[0].d_bias)) << count;
          }
        }
        EXPECT_TRUE(padding_is_intact(c.strided()));
      });
      if (HasFailure()) return;
    }
  }
}

// A d_bias of 36 MiB is written with non-temporal stores, the 4 MiB of a single sequence are not. The bits must be the same. The rows have odd length, so they
// are not aligned to vectors.
TEST(CpuBiasGradient, PastTheCachesHasTheSameBits) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Random random(9);
    const std::int64_t queries = dtype == DType::f64 ? 500 : 1000;
    AttentionCase all = case_of(random, dtype, {.lead = {9}, .queries = queries, .keys = 1049, .qk_width = 2, .v_width = 2});
    all.options.bias = all.keep(random.tensor(dtype, all.sizes.pairs()));
    all.options.mask.causal = Causal::top_left();
    for_each_instruction_set([&] {
      const AttentionOutputs whole = all.make_outputs();
      fill(whole.d_bias, kNaN);
      all.run(whole);
      for (std::int64_t b = 0; b < 9; ++b) {
        AttentionCase one = alone(all, sequence_of(all, b));
        expect_same_bits_alone(all, whole, sequence_of(all, b), one);
      }
    });
  }
}

}  // namespace
}  // namespace polyhead::test
