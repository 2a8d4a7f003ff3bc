// Tests the backward pass with different numbers of threads. Splits of rows, splits of keys and groups of sequences run on one thread or on several, and the
// bits must be the same.
#include <gtest/gtest.h>

#include "cpu/sdpa/schedule.h"
#include "support/kernel_case.h"
#include "support/last_piece_first.h"

namespace polyhead::test {
namespace {

cpu::AttentionSizes sizes_of(const AttentionCase& c) {
  cpu::AttentionSizes sizes;
  sizes.batch = numel(c.sizes.lead), sizes.kv_heads = c.sizes.kv_heads, sizes.group = c.sizes.group;
  sizes.queries = c.sizes.queries, sizes.keys = c.sizes.keys, sizes.qk_width = c.sizes.qk_width, sizes.v_width = c.sizes.v_width;
  sizes.element_bytes = c.dtype == DType::f64 ? 8 : 4;
  sizes.banded = c.options.mask.causal.has_value();
  sizes.lower = -c.sizes.queries, sizes.upper = 1;
  return sizes;
}

// Runs the case on one thread and compares it with the reference. Then checks that other numbers of threads, and strided outputs, give the same bits.
void expect_same_for_any_threads(std::uint64_t seed, AttentionCase& c, Random& random) {
  AttentionCase wide = in_float64(c);
  const AttentionOutputs forward = reference_forward(c), expected = reference_backward(wide, forward);
  const Tolerances t(c);
  for_each_instruction_set(seed, [&] {
    AttentionOutputs one;
    for (const int threads : thread_counts(seed, {1, 2, 3, 8, 64})) {
      SCOPED_TRACE(threads);
      LastPieceFirst executor(threads);
      c.options.executor = &executor;
      const AttentionOutputs o = c.make_outputs(threads == 8 ? &random : nullptr);
      for (const TensorView& view : {o.d_q, o.d_k, o.d_v}) fill(view, kNaN);
      if (o.d_sink) fill(o.d_sink, kNaN);
      backward_from(c, forward, o);
      if (threads == 1) {
        one = o;
        expect_gradients_near(o, expected, t);
      } else {
        expect_same_bits(o, one);
      }
    }
    c.options.executor = nullptr;
    const AttentionOutputs o = c.make_outputs();  // this run uses the threads of the library
    backward_from(c, forward, o);
    expect_same_bits(o, one);
  });
  EXPECT_TRUE(padding_is_intact(c.strided()));
}

struct Shapes {
  const char* name;
  AttentionSizes sizes;
  bool causal, rows_apart, keys_apart;  // the schedule that 64 threads must get: whether splits of rows, and splits of keys, run on different threads
};

const Shapes kShapes[] = {
    {"rows and keys", {.lead = {1}, .queries = 1300, .keys = 700, .qk_width = 20, .v_width = 8}, false, true, true},
    {"causal, cells without pairs", {.lead = {1}, .queries = 1300, .keys = 1400, .qk_width = 16, .v_width = 16}, true, true, true},
    {"keys in splits of several blocks", {.lead = {1}, .queries = 70, .keys = 4700, .qk_width = 16, .v_width = 24}, false, false, true},
    {"grouped heads, splits of rows that cross heads",
     {.lead = {1}, .kv_heads = 2, .group = 3, .queries = 500, .keys = 200, .qk_width = 24, .v_width = 32},
     false,
     true,
     false},
};

TEST(CpuBackwardSplits, AreTheSameForAnyNumberOfThreads) {
  std::uint64_t seed = 39;
  for (const Shapes& shapes : kShapes) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      SCOPED_TRACE(shapes.name);
      SCOPED_TRACE(std::string(info(dtype).name));
      Random random(++seed);
      AttentionCase c = case_of(random, dtype, shapes.sizes);
      if (shapes.causal) c.options.mask.causal = Causal::top_left();
      if (dtype == DType::f32) {
        const cpu::BackwardSchedule schedule(sizes_of(c), {}, 64);
        EXPECT_EQ(schedule.rows_apart, shapes.rows_apart);
        EXPECT_EQ(schedule.keys_apart, shapes.keys_apart);
      }
      expect_same_for_any_threads(seed, c, random);
      if (HasFailure()) return;
    }
  }
}

// Tests every way in which pairs share elements of d_bias.
TEST(CpuBackwardSplits, WithEachKindOfBias) {
  struct Bias {
    const char* name;
    Shape shape;  // the shape of the bias; if empty, the case has a relative bias with a table instead
    std::int64_t group = 1;
  };
  std::uint64_t seed = 59;
  for (const Bias& bias :
       {Bias{"of every pair", {2, 2, 1100, 300}}, Bias{"shared by heads", {2, 1, 1100, 300}}, Bias{"shared by rows", {2, 2, 1, 300}},
        Bias{"shared by keys", {2, 2, 1100, 1}}, Bias{"shared by sequences", {1, 2, 1100, 300}}, Bias{"of relative positions", {}},
        Bias{"shared by grouped heads", {2, 1, 1100, 300}, 3}, Bias{"shared by grouped heads and sequences", {1100, 300}, 3},
        Bias{"of every pair, grouped heads", {2, 6, 1100, 300}, 3}}) {
    const AttentionSizes sizes{.lead = {2}, .kv_heads = 2, .group = bias.group, .queries = 1100, .keys = 300, .qk_width = 8, .v_width = 8};
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(bias.name);
      SCOPED_TRACE(causal);
      Random random(++seed);
      if (quick() && causal != ((seed - 60) / 2 % 2 == 1)) continue;  // to save time, a quick run tests a seed only with a causal mask, or only without one
      AttentionCase c = case_of(random, DType::f32, sizes);
      if (causal) c.options.mask.causal = Causal::top_left();
      bias.shape.size() == 0 ? c.use_bias_table(c.keep(random.tensor(c.dtype, {2, 2, 1399})))
                             : void(c.options.bias = c.keep(random.strided(c.dtype, bias.shape)));
      expect_same_for_any_threads(seed, c, random);
      if (HasFailure()) return;
    }
  }
}

TEST(CpuBackwardSplits, GroupsOfSequencesThatShareSlopes) {
  Random random(81);
  AttentionCase c = case_of(random, DType::f32, {.lead = {5, 4}, .kv_heads = 3, .queries = 100, .keys = 90, .qk_width = 8, .v_width = 16});
  c.options.relative_bias.slopes = c.keep(random.tensor(DType::f32, {3}, 0, 0.1));
  expect_same_for_any_threads(81, c, random);
}

TEST(CpuBackwardSplits, GroupsOfSequencesThatShareABias) {
  std::uint64_t seed = 79;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape& shape : {Shape{1, 1, 3, 100, 90}, Shape{1, 1, 1, 100, 90}, Shape{5, 1, 3, 100, 90}}) {
      SCOPED_TRACE(std::string(info(dtype).name));
      Random random(++seed);
      AttentionCase c = case_of(random, dtype, {.lead = {5, 4}, .kv_heads = 3, .queries = 100, .keys = 90, .qk_width = 8, .v_width = 16});
      c.options.bias = c.keep(random.strided(dtype, shape));
      expect_same_for_any_threads(seed, c, random);
      if (HasFailure()) return;
    }
  }
  cpu::AttentionSizes sizes;
  sizes.batch = 20, sizes.kv_heads = 3, sizes.queries = 100, sizes.keys = 90, sizes.qk_width = 8, sizes.v_width = 16;
  EXPECT_TRUE(cpu::BackwardSchedule(sizes, {.sequences = true, .groups = true}, 64).groups_apart);
}

TEST(CpuBackwardSplits, WithEachRuleOfKeysAndScores) {
  struct Rule {
    const char* name;
    void (*apply)(AttentionCase& c, Random& random);
  };
  const Rule rules[] = {
      {"window", [](AttentionCase& c, Random&) { c.options.mask.window = {.left = 200, .right = 50}; }},
      {"diagonals of the sequences",
       [](AttentionCase& c, Random&) {
         c.options.mask.causal = Causal::top_left();
         c.options.mask.diagonal_offsets = c.keep(Tensor::of<std::int64_t>({2}, {-800, 100}));
       }},
      {"lengths",
       [](AttentionCase& c, Random&) {
         c.options.mask.key_lengths = c.keep(Tensor::of<std::int64_t>({2}, {300, 0}));
       }},
      {"booleans, uniform empty rows",
       [](AttentionCase& c, Random& random) {
         const TensorView attend = c.keep(random.tensor(DType::boolean, {1150, 600}));
         fill(attend.slice(0, 600, 700), 0);
         c.options.mask.attend = attend;
         c.options.mask.causal = Causal::offset(-300);
         c.options.empty_rows = EmptyRows::uniform;
       }},
      {"slopes",
       [](AttentionCase& c, Random& random) {
         c.options.relative_bias.slopes = c.keep(random.tensor(DType::f32, {c.sizes.heads()}, 0, 0.02));
       }},
      {"softcap and dropout", [](AttentionCase& c, Random&) { c.options.softcap = 3, c.options.dropout = {.p = 0.25, .seed = 4}; }},
      {"a large lse", [](AttentionCase& c, Random&) { c.options.scale = 30; }},
      {"NaN",
       [](AttentionCase& c, Random&) {
         const TensorView k = c.keep(Tensor::copy_of(c.k));
         fill(k.slice(-2, 400, 401), kNaN);
         c.k = k;
         c.options.mask.causal = Causal::top_left();
       }},
  };
  std::uint64_t seed = 99;
  for (const Rule& rule : rules) {
    SCOPED_TRACE(rule.name);
    Random random(++seed);
    AttentionCase c = case_of(random, DType::f32, {.lead = {2}, .queries = 1150, .keys = 600, .qk_width = 8, .v_width = 8});
    rule.apply(c, random);
    expect_same_for_any_threads(seed, c, random);
    if (HasFailure()) return;
  }
}

// d_sink of each row is written by the task that has the first keys, even if the window excludes all keys of this task for the row.
TEST(CpuBackwardSplits, WithSinksOfRowsThatLackTheFirstKeys) {
  Random random(120);
  AttentionCase c = case_of(random, DType::f32, {.lead = {1}, .queries = 2200, .keys = 2200, .qk_width = 32, .v_width = 32});
  c.options.mask.window = {.left = 200, .right = 50};
  c.options.sink = c.keep(random.tensor(DType::f32, {1}));
  cpu::AttentionSizes sizes = sizes_of(c);
  sizes.banded = true, sizes.lower = -200, sizes.upper = 51;
  const cpu::BackwardSchedule schedule(sizes, {}, 64);
  EXPECT_TRUE(schedule.rows_apart && schedule.keys_apart);
  expect_same_for_any_threads(120, c, random);
}

TEST(CpuBackwardSplits, OfEachGradientAlone) {
  Random random(90);
  AttentionCase c = case_of(random, DType::f32, kShapes[1].sizes, &find_backend("cpu"));
  c.options.mask.causal = Causal::top_left();
  const AttentionOutputs all = c.make_outputs();
  LastPieceFirst executor(64);
  c.options.executor = &executor;
  c.run(all);
  for (int which = 0; which < 3; ++which) {
    AttentionOutputs o = c.make_outputs();
    o.out = all.out, o.lse = all.lse;
    if (which != 0) o.d_q = {};
    if (which != 1) o.d_k = {};
    if (which != 2) o.d_v = {};
    c.backward(o);
    if (which == 0) {
      EXPECT_TRUE(same_bits(o.d_q, all.d_q));
    }
    if (which == 1) {
      EXPECT_TRUE(same_bits(o.d_k, all.d_k));
    }
    if (which == 2) {
      EXPECT_TRUE(same_bits(o.d_v, all.d_v));
    }
  }
}

}  // namespace
}  // namespace polyhead::test
