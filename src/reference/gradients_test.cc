// Compares every gradient of attention with central differences in float64, for each option alone and for all options at once.
#include "support/gradients.h"

#include "support/attention_case.h"

namespace polyhead::test {
namespace {

AttentionCase odd_case(Random& random) {
  return case_of(random, DType::f64, {.lead = {2}, .kv_heads = 2, .group = 2, .queries = 3, .keys = 5, .qk_width = 3, .v_width = 2});
}

// Compares the case's gradients with central differences. Inputs are made contiguous, so that changing one element of memory changes one element of the input.
void check(AttentionCase& c) {
  const TensorView q = c.keep(Tensor::copy_of(c.q)), k = c.keep(Tensor::copy_of(c.k)), v = c.keep(Tensor::copy_of(c.v));
  c.q = q, c.k = k, c.v = v;
  TensorView bias;
  if (c.options.bias && !c.table) c.options.bias = bias = c.keep(Tensor::copy_of(c.options.bias));
  TensorView sink;
  if (c.options.sink) c.options.sink = sink = c.keep(Tensor::copy_of(c.options.sink));
  const AttentionOutputs o = c.make_outputs();
  c.run(o);
  std::vector<Leaf> leaves{{"q", q, o.d_q}, {"k", k, o.d_k}, {"v", v, o.d_v}};
  if (bias) leaves.push_back({"bias", bias, o.d_bias});
  if (sink) leaves.push_back({"sink", sink, o.d_sink});
  if (c.table) leaves.push_back({"table", c.table, o.d_table});
  const auto loss = [&] {
    Tensor moved(DType::f64, c.sizes.out());
    sdpa_forward({.q = c.q, .k = c.k, .v = c.v, .out = moved}, c.options);
    return weighted_sum(moved, c.d_out);
  };
  expect_gradients(loss, leaves);
}

TEST(ReferenceGradients, PlainGroupedHeadsUnequalWidths) {
  Random random(1);
  AttentionCase c = odd_case(random);
  check(c);
}

TEST(ReferenceGradients, ScaleOfEitherSign) {
  for (const double scale : {0.37, -0.8}) {
    Random random(2);
    AttentionCase c = odd_case(random);
    c.options.scale = scale;
    check(c);
  }
}

TEST(ReferenceGradients, Softcap) {
  Random random(3);
  AttentionCase c = odd_case(random);
  c.options.softcap = 0.7;
  check(c);
}

TEST(ReferenceGradients, BiasOfEveryBroadcastShape) {
  Random random(4);
  for (int present = 0; present < 16; ++present) {
    SCOPED_TRACE(present);
    AttentionCase c = odd_case(random);
    Shape shape = c.sizes.pairs();
    for (int axis = 0; axis < 4; ++axis) {
      if ((present >> axis & 1) == 0) shape[axis] = 1;
    }
    c.options.bias = c.keep(random.tensor(DType::f64, shape));
    check(c);
  }
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    AttentionCase c = odd_case(random);
    c.options.bias = c.keep(random.tensor(DType::f64, c.sizes.pairs().last(rank)));
    check(c);
  }
}

TEST(ReferenceGradients, RelativePositionTableGetsTheSumOfItsDiagonals) {
  Random random(5);
  for (const bool per_head : {false, true}) {
    AttentionCase c = odd_case(random);
    Shape shape{c.sizes.queries + c.sizes.keys - 1};
    if (per_head) shape.insert(0, c.sizes.heads());
    c.use_bias_table(c.keep(random.tensor(DType::f64, shape)));
    c.options.softcap = 2;
    check(c);
  }
}

TEST(ReferenceGradients, DropoutWithGeneratedAndGivenBits) {
  Random random(6);
  AttentionCase generated = odd_case(random);
  generated.options.dropout = {.p = 0.4, .seed = 11};
  generated.options.bias = generated.keep(random.tensor(DType::f64, {3, 5}));
  check(generated);
  AttentionCase given = odd_case(random);
  given.options.dropout = {.p = 0.25, .keep = given.keep(random.tensor(DType::boolean, {4, 3, 5}))};
  check(given);
}

TEST(ReferenceGradients, EachMaskAndEmptyRowsMode) {
  for (const EmptyRows mode : {EmptyRows::zero, EmptyRows::uniform, EmptyRows::unmasked}) {
    SCOPED_TRACE(static_cast<int>(mode));
    Random random(7);
    AttentionCase c = odd_case(random);
    c.options.empty_rows = mode;
    Tensor attend = random.tensor(DType::boolean, c.sizes.pairs());
    fill(attend.view().select(2, 1), 0);  // query 1 attends to no key
    c.options.mask.attend = c.keep(std::move(attend));
    c.options.bias = c.keep(random.tensor(DType::f64, {1, 3, 5}));
    check(c);
  }
  Random random(8);
  AttentionCase c = odd_case(random);
  c.options.mask = {.causal = Causal::bottom_right(), .window = {.left = 1}, .key_lengths = c.keep(Tensor::of<std::int32_t>({2}, {5, 2}))};
  check(c);
}

TEST(ReferenceGradients, SinkOfEveryBroadcastShape) {
  Random random(9);
  for (const Shape& shape : {Shape{}, Shape{4}, Shape{1, 1}, Shape{4, 1}, Shape{1, 3}, Shape{4, 3}, Shape{2, 1, 1}, Shape{2, 4, 3}}) {
    for (const double level : {0.0, 3.0}) {
      AttentionCase c = odd_case(random);
      c.options.sink = c.keep(random.tensor(DType::f64, shape, level - 1, level + 1));
      c.options.softcap = 2;
      c.options.mask.causal = Causal::offset(-1);  // with this mask, query 0 attends to no key
      c.options.dropout = {.p = 0.25, .seed = 3};
      check(c);
    }
  }
}

TEST(ReferenceGradients, RandomProblems) {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 5'000);
    AttentionCase c = draw_case(random, DType::f64);
    if (numel(c.sizes.pairs()) > 400) continue;
    check(c);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace polyhead::test
