// Tests problems with few queries and many keys. Their keys are split over threads, and the results of all key blocks are joined in the order of the keys.
#include <gmock/gmock.h>

#include "support/case_part.h"
#include "support/kernel_case.h"
#include "support/last_piece_first.h"
#include "support/machines.h"
#include "support/seeds.h"
#include "support/thread_count.h"

namespace polyhead::test {
namespace {

using testing::HasSubstr;

// The tests use four threads, because keys are split only if there are several threads.
class CpuSdpaKeySplits : public testing::Test {
  ThreadCount threads_{4};
};

std::string facts(const AttentionCase& c, const AttentionOutputs& o) {
  return explain({.q = c.q, .k = c.k, .v = c.v, .out = o.out, .lse = o.lse}, c.options);
}
bool is_split(const AttentionCase& c, const AttentionOutputs& o) { return facts(c, o).find(" splits\n") != std::string::npos; }

AttentionSizes draw_sizes_of_splits(Random& random) {
  AttentionSizes z;
  z.lead = {random.pick<std::int64_t>({1, 1, 1, 1, 2, 9})};
  z.kv_heads = random.pick<std::int64_t>({1, 1, 2, 3}), z.group = random.pick<std::int64_t>({1, 1, 2, 5});
  z.queries = random.pick<std::int64_t>({1, 1, 2, 3, 8, 13, 50, 100});
  z.keys = random.pick<std::int64_t>({2048, 3073, 4097, 5000});
  z.qk_width = random.pick<std::int64_t>({64, 80, 96}), z.v_width = random.pick<std::int64_t>({60, 64, 97, 128});
  if (z.lead[0] * z.heads() * z.queries > 100) z.kv_heads = 1, z.group = 1, z.queries = 100 / z.lead[0];  // run fewer rows, because the reference is slow
  return z;
}

TEST_F(CpuSdpaKeySplits, ForwardIsTheReferenceAndTheSameForAnyNumberOfThreads) {
  std::size_t cut = 0;
  const std::vector<std::uint64_t> drawn = seeds(3000, 80);
  for (const std::uint64_t seed : drawn) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_case(random, kDTypes[seed % 5], draw_sizes_of_splits(random)), wide = in_float64(c);
    const AttentionOutputs expected = reference_forward(wide);
    const Tolerances tolerance(c);
    set_num_threads(4);
    c.options.backend = &find_backend("cpu");
    const AttentionOutputs several = c.make_forward_outputs();
    cut += is_split(c, several) ? 1 : 0;
    for_each_instruction_set(seed, [&] {
      const AttentionOutputs one = c.make_forward_outputs(&random);
      set_num_threads(1);
      c.forward(one);
      expect_forward_near(one, expected, tolerance);
      set_num_threads(static_cast<int>(random.integer(2, 5)));
      c.forward(several);
      EXPECT_TRUE(same_bits(several.out, one.out)) << "out";
      EXPECT_TRUE(same_bits(several.lse, one.lse)) << "lse";
    });
    EXPECT_TRUE(padding_is_intact(c.strided()));
    if (HasFailure()) return;
  }
  EXPECT_GT(cut, drawn.size() / 2);
}

// Returns a case with a few queries of one head and 5000 keys of width 64, which are computed in several key splits.
AttentionCase long_case(Random& random, DType dtype, std::int64_t queries, std::int64_t sequences = 1) {
  return case_of(random, dtype, {.lead = {sequences}, .queries = queries, .keys = 5000, .qk_width = 64, .v_width = 64}, &find_backend("cpu"));
}

// With q = 0 and a bias that is exact in float32, every score is exact. If the results of key splits were joined by a rounded lse, attention weights would be off
// by 2e-4.
TEST_F(CpuSdpaKeySplits, WeightsAreExactForScoresOfAnySize) {
  for (const double level : {0.0, 8192.0, -8192.0, 1e30, -1e38}) {
    for (const std::int64_t queries : {1, 7}) {
      SCOPED_TRACE(level);
      Random random(5);
      AttentionCase c = long_case(random, DType::f32, queries);
      const Tensor q(DType::f32, c.sizes.q());
      Tensor v(DType::f32, c.sizes.v()), bias(DType::f32, {c.sizes.keys});
      for (std::int64_t s = 0; s < c.sizes.keys; ++s) {
        bias.data<float>()[s] = static_cast<float>(level) + static_cast<float>(random.integer(0, 2000)) / 1024;
        fill(v.view().slice(-2, s, s + 1), s < 2500 ? 1 : -1);
      }
      c.q = q, c.v = v, c.options.bias = bias;
      const AttentionOutputs expected = reference_forward(c);
      ASSERT_TRUE(is_split(c, expected));
      for_each_instruction_set([&] {
        const AttentionOutputs o = c.make_forward_outputs();
        c.forward(o);
        EXPECT_TRUE(near(o.out, expected.out, 1e-5));
        EXPECT_TRUE(near_relative(o.lse, expected.lse, 1e-6));
      });
    }
  }
}

// Some key splits contribute nothing to a row, because of a mask, a key length, a window, or scores of -infinity.
TEST_F(CpuSdpaKeySplits, SplitsThatContributeNothingToARow) {
  struct Row {
    const char* name;
    std::int64_t first, last;  // the range of keys that have a score above -infinity, or that the mask allows
  };
  for (const Row& row : {Row{"the first", 0, 600}, Row{"the last", 4990, 5000}, Row{"the middle", 2000, 2600}, Row{"one key", 3000, 3001},
                         Row{"none", 0, 0}}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      if (emulated() && dtype == DType::f64) continue;
      for (const char* by : {"mask", "key mask", "bias", "length", "range", "window"}) {
        SCOPED_TRACE(row.name);
        SCOPED_TRACE(by);
        Random random(6);
        AttentionCase c = long_case(random, dtype, 5);
        Tensor attend(DType::boolean, {5, 5000}), bias(dtype, {5000}), starts(DType::i64, {1}), lengths(DType::i64, {1});
        fill(bias, -kInfinity);
        fill(attend.view().slice(1, row.first, row.last), 1);
        fill(bias.view().slice(0, row.first, row.last), -500);  // scores far below 0, because 0 is the initial reference of a row without keys
        starts.data<std::int64_t>()[0] = row.first, lengths.data<std::int64_t>()[0] = row.last;
        if (by == std::string("mask")) c.options.mask.attend = attend;
        if (by == std::string("key mask")) c.options.mask.attend_keys = ConstTensorView(attend).select(0, 0);
        if (by == std::string("bias")) c.options.bias = bias;
        if (by == std::string("length")) c.options.mask.key_lengths = lengths;
        if (by == std::string("range")) c.options.mask.key_starts = starts, c.options.mask.key_lengths = lengths;
        if (by == std::string("window")) c.options.mask.window = {.left = row.last - row.first, .right = 0, .diagonal = Diagonal::offset(row.last)};
        const AttentionOutputs expected = reference_forward(c);
        const Tolerances tolerance(c);
        for_each_instruction_set(dtype, [&] {
          const AttentionOutputs o = c.make_forward_outputs();
          c.forward(o);
          expect_forward_near(o, expected, tolerance);
        });
        if (HasFailure()) return;
      }
    }
  }
}

// A NaN in the value of a masked key must not reach the row. A NaN in the value of an attended key must reach the row, even if every score of its split is
// -infinity.
TEST_F(CpuSdpaKeySplits, NaNOfAValueReachesExactlyTheRowsThatAttendToIt) {
  for (const std::int64_t poisoned : {0, 1800, 4999}) {
    SCOPED_TRACE(poisoned);
    Random random(7);
    AttentionCase c = long_case(random, DType::f32, 3);
    const Tensor v = Tensor::copy_of(c.v);
    const TensorView with_nan = c.keep(Tensor::copy_of(v));
    fill(with_nan.slice(-2, poisoned, poisoned + 1), kNaN);
    Tensor attend(DType::boolean, {3, 5000}), bias(DType::f32, {3, 5000});
    fill(attend, 1);
    fill(attend.view().slice(0, 0, 1).slice(1, poisoned, poisoned + 1), 0);
    fill(bias.view().slice(0, 1, 2).slice(1, poisoned / 1000 * 1000, poisoned / 1000 * 1000 + 1000), -kInfinity);
    c.options.mask.attend = attend, c.options.bias = bias;
    for_each_instruction_set([&] {
      const AttentionOutputs before = c.make_forward_outputs(), after = c.make_forward_outputs();
      c.v = v;
      c.forward(before);
      c.v = with_nan;
      c.forward(after);
      EXPECT_TRUE(is_split(c, after));
      EXPECT_TRUE(same_bits(ConstTensorView(after.out).select(2, 0), ConstTensorView(before.out).select(2, 0)));
      EXPECT_TRUE(same_bits(after.lse, before.lse));
      for (const std::int64_t t : {1, 2}) {
        for (const double x : to_doubles(ConstTensorView(after.out).select(2, t))) EXPECT_TRUE(std::isnan(x)) << t;
      }
    });
  }
}

// With nine sequences one task computes all keys of a block of rows. With one sequence each key split is a separate task. The bits must be the same.
TEST_F(CpuSdpaKeySplits, BitsOfASequenceDoNotDependOnHowManyThereAre) {
  Random random(8);
  AttentionCase c = long_case(random, DType::f32, 3, 9), first = alone(c, sequence_of(c, 0));
  const AttentionOutputs all = c.make_outputs();
  c.run(all);
  expect_same_bits_alone(c, all, sequence_of(c, 0), first);
}

// Runs key splits with the cache sizes and the processor count of each machine in a list, and compares the results with the reference, and bit for bit
// with those of one thread.
TEST_F(CpuSdpaKeySplits, AgreeWithTheReferenceForAnyCache) {
  struct Sizes {
    std::int64_t queries, keys;
  };
  std::uint64_t seed = 30;
  for (const Sizes& z : {Sizes{1, 9000}, Sizes{100, 4100}}) {
    SCOPED_TRACE(z.queries);
    Random random(30);
    AttentionCase c = case_of(random, DType::f32, {.lead = {1}, .kv_heads = 2, .group = 2, .queries = z.queries, .keys = z.keys, .qk_width = 64, .v_width = 64});
    const AttentionOutputs expected = reference_forward(c), one = c.make_forward_outputs();
    const Tolerances tolerance(c);
    for_each_instruction_set(seed++, [&] {
      set_num_threads(1);
      c.forward(one);
      expect_forward_near(one, expected, tolerance);
      for_each_machine([&](const DescribedMachine& machine) {
        const AttentionOutputs o = c.make_forward_outputs();
        c.forward(o);
        EXPECT_TRUE(same_bits(o.out, one.out)) << "out";
        EXPECT_TRUE(same_bits(o.lse, one.lse)) << "lse";
        EXPECT_EQ(is_split(c, o), machine.processors > 4 || (z.queries == 1 && machine.processors == 3)) << facts(c, o);
      });
    });
  }
}

// Tests that blocks of rows of any size, blocks of a causal mask computed in any order, and key splits give the same bits as one thread.
TEST_F(CpuSdpaKeySplits, ManyThreadsCutRowsAndKeysWithTheSameBits) {
  struct Sizes {
    std::int64_t kv_heads, group, queries, keys;
    const char* expected;  // the schedule that explain() must report for 64 threads without a mask
  };
  std::uint64_t seed = 19;
  for (const Sizes& z : {Sizes{2, 2, 900, 700, "blocks of 60 queries, 60 of them\n"}, Sizes{2, 1, 500, 3000, "blocks of 36 queries, 28 of them, the keys of each in 6 splits\n"},
                         Sizes{3, 2, 4, 20'000, "blocks of 8 queries, 3 of them, the keys of each in 20 splits\n"}}) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(z.expected);
      SCOPED_TRACE(causal);
      Random random(++seed);
      const AttentionSizes sizes{
          .lead = {1}, .kv_heads = z.kv_heads, .group = z.group, .queries = z.queries, .keys = z.keys, .qk_width = 64, .v_width = 64};
      AttentionCase c = case_of(random, DType::f32, sizes);
      if (causal) c.options.mask.causal = z.keys > z.queries ? Causal::bottom_right() : Causal::top_left();
      const AttentionOutputs expected = reference_forward(c);
      const Tolerances tolerance(c);
      for_each_instruction_set(seed, [&] {
        const AttentionOutputs one = c.make_forward_outputs();
        LastPieceFirst executor(1);
        c.options.executor = &executor;
        c.forward(one);
        expect_forward_near(one, expected, tolerance);
        for (const int threads : {3, 8, 64}) {
          LastPieceFirst many(threads);
          c.options.executor = &many;
          const AttentionOutputs o = c.make_forward_outputs();
          c.forward(o);
          EXPECT_TRUE(same_bits(o.out, one.out)) << threads;
          EXPECT_TRUE(same_bits(o.lse, one.lse)) << threads;
          if (threads == 64 && !causal) {
            EXPECT_THAT(facts(c, o), HasSubstr(z.expected));
          }
        }
        c.options.executor = nullptr;
      });
      if (HasFailure()) return;
    }
  }
}

TEST_F(CpuSdpaKeySplits, ExplainNamesTheSplits) {
  const auto of = [](std::int64_t heads, std::int64_t queries, std::int64_t keys, const SdpaOptions& options = {}) {
    const Tensor q(DType::f32, {1, heads, queries, 128}), k(DType::f32, {1, heads, keys, 128});
    Tensor out(DType::f32, q.shape());
    return explain({.q = q, .k = k, .v = k, .out = out}, options);
  };
  set_num_threads(8);
  EXPECT_THAT(of(1, 1, 8192), HasSubstr("blocks of 1 queries, 1 of them, the keys of each in 8 splits\n"));
  EXPECT_THAT(of(4, 1, 8192), HasSubstr("4 of them, the keys of each in 2 splits\n"));
  EXPECT_THAT(of(8, 1, 8192), HasSubstr("8 of them\n"));
  EXPECT_THAT(of(1, 1, 1000), HasSubstr("1 of them\n"));
  EXPECT_THAT(of(1, 1, 8192, {.mask = {.window = {.left = 500}}}), HasSubstr("1 of them\n"));
  set_num_threads(1);
  EXPECT_THAT(of(1, 1, 8192), HasSubstr("1 of them\n"));
}

}  // namespace
}  // namespace polyhead::test
