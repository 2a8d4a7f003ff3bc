// Tests Mask::diagonal_offsets on every backend. Sequences with different offsets must have the same bits in forward, backward and maps as calls with each
// sequence alone, in which Diagonal::offset sets the offset.
#include "polyhead/maps.h"
#include "support/case_part.h"
#include "support/each_backend.h"
#include "support/kernel_case.h"

namespace polyhead::test {
namespace {

AttentionCase alone_with_offset(const AttentionCase& c, std::int64_t b) {
  AttentionCase d = alone(c, sequence_of(c, b));
  Mask& mask = d.options.mask;
  const auto offset = static_cast<std::int64_t>(to_doubles(mask.diagonal_offsets)[static_cast<std::size_t>(b)]);
  mask.diagonal_offsets = {};
  const Diagonal diagonal = Diagonal::offset(offset);
  if (mask.causal) {
    mask.causal = diagonal;
  } else if (mask.window.left || mask.window.right) {
    mask.window.diagonal = diagonal;
  } else {
    d.options.relative_bias.diagonal = diagonal;
  }
  return d;
}

AttentionCase draw_with_offsets(Random& random, DType dtype) {
  AttentionSizes z = draw_block_sizes(random);
  z.lead = {random.integer(1, 4)};
  z.queries = random.pick<std::int64_t>({1, 17, 40, 97}), z.keys = random.pick<std::int64_t>({1, 33, 97, 300});
  z.qk_width = random.pick<std::int64_t>({3, 8, 16}), z.v_width = random.pick<std::int64_t>({2, 16, 33});
  AttentionCase c = draw_case(random, dtype, z);
  Mask& mask = c.options.mask;
  mask.query_offsets = mask.key_offsets = {};
  if (!mask.window.left && !mask.window.right && !c.options.relative_bias) mask.causal = Causal::top_left();
  c.options.relative_bias.diagonal = {};
  if (mask.causal) mask.causal = Causal::top_left();
  mask.window.diagonal = {};
  Tensor offsets(DType::i32, z.lead);
  for (std::int64_t b = 0; b < offsets.numel(); ++b) offsets.data<std::int32_t>()[b] = static_cast<std::int32_t>(random.integer(-z.queries - 1, z.keys + 1));
  mask.diagonal_offsets = c.keep(std::move(offsets));
  return c;
}

using DiagonalOffsetsOf = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, DiagonalOffsetsOf, testing::ValuesIn(backends()), name_of_backend);

TEST_P(DiagonalOffsetsOf, EachSequenceHasTheBitsOfACallWithItAlone) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_with_offsets(random, kDTypes[seed % 5]);
    c.options.backend = GetParam();
    AttentionOutputs o = c.make_outputs();
    o.attention_weights = c.keep(Tensor(c.dtype, c.sizes.pairs()));
    c.run(o);
    for (std::int64_t b = 0; b < c.sizes.lead[0]; ++b) {
      AttentionCase d = alone_with_offset(c, b);
      expect_same_bits_alone(c, o, sequence_of(c, b), d);
      expect_same_maps_alone(c, sequence_of(c, b), d);
      if (HasFailure()) return;
    }
  }
}

// The queries continue sequences that have 3, 0 and 5 earlier keys. The last query of a sequence attends to all of its keys, as with Causal::bottom_right().
TEST_P(DiagonalOffsetsOf, ContinueSequencesOfUnequalLengths) {
  Random random(3);
  constexpr std::int64_t kNew = 2, kKeys = 7;
  const Tensor q = random.tensor(DType::f64, {3, 2, kNew, 4}), k = random.tensor(DType::f64, {3, 1, kKeys, 4}), v = random.tensor(DType::f64, {3, 1, kKeys, 4});
  const Tensor before = Tensor::of<std::int64_t>({3}, {3, 0, 5}), after = Tensor::of<std::int64_t>({3}, {5, 2, 7});
  Tensor out(DType::f64, {3, 2, kNew, 4}), expected(DType::f64, {1, 2, kNew, 4});
  SdpaOptions options{.mask = {.causal = Causal::top_left(), .key_lengths = after, .diagonal_offsets = before}, .backend = GetParam()};
  sdpa_forward({.q = q, .k = k, .v = v, .out = out}, options);
  for (std::int64_t b = 0; b < 3; ++b) {
    const auto own = [&](const Tensor& x) { return x.view().slice(0, b, b + 1); };
    const std::int64_t keys = after.data<std::int64_t>()[b];
    sdpa_forward({.q = own(q), .k = own(k).slice(-2, 0, keys), .v = own(v).slice(-2, 0, keys), .out = expected},
                 {.mask = {.causal = Causal::bottom_right()}, .backend = GetParam()});
    EXPECT_TRUE(near(own(out), expected, 1e-14)) << b;
  }
}

TEST(DiagonalOffsets, AreExplained) {
  const Tensor q(DType::f32, {2, 2, 6, 4}), offsets = Tensor::of<std::int32_t>({2}, {1, 5});
  Tensor out(q);
  const SdpaOptions options{.mask = {.causal = Causal::top_left(), .diagonal_offsets = offsets}};
  EXPECT_NE(explain({.q = q, .k = q, .v = q, .out = out}, options).find("offset for each sequence"), std::string::npos);
}

}  // namespace
}  // namespace polyhead::test
