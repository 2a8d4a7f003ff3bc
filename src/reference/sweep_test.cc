// Compares the backend `reference` with the naive formula of tests/support in random problems. The reference computes in float64, so a result may differ only
// by the rounding to its dtype.
#include "polyhead/maps.h"
#include "support/attention_case.h"

namespace polyhead::test {
namespace {

constexpr std::uint64_t kSeeds = 700;

// Returns the largest rounding error of a value below 1 in this dtype, plus a margin for the rounding of float64 sums.
double storage_error(DType dtype) { return dtype == DType::f64 ? 1e-13 : 0x1.001p0 * unit_roundoff(dtype); }

testing::AssertionResult agrees(ConstTensorView actual, const Tensor& expected) {
  return near(actual, expected, storage_error(actual.dtype()) * std::max(1.0, largest_magnitude(expected)));
}

AttentionCase drawn(std::uint64_t seed) {
  Random random(seed);
  AttentionCase c = draw_case(random, std::array{DType::f64, DType::f32, DType::bf16, DType::f16}[seed % 4]);
  c.options.backend = &find_backend("reference");
  return c;
}

TEST(ReferenceSweep, ForwardAndBackwardAgreeWithTheFormula) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Random layout(seed + 1'000'000);
    AttentionCase c = drawn(seed);
    const FullResults expected = naive_attention(c);
    const AttentionOutputs o = c.make_outputs(&layout);
    c.run(o);
    EXPECT_TRUE(agrees(o.out, to_tensor(expected.out, c.sizes.out()))) << "out";
    EXPECT_TRUE(agrees(o.lse, to_tensor(expected.lse, c.sizes.lse()))) << "lse";
    expect_naive_gradients(c, expected, o, agrees);
    EXPECT_TRUE(padding_is_intact(c.strided()));
    if (HasFailure()) return;
  }
}

TEST(ReferenceSweep, EveryMapAgreesWithTheFormula) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Random layout(seed + 1'000'000);
    AttentionCase c = drawn(seed);
    const FullResults expected = naive_attention(c);
    const AttentionOutputs o = c.make_outputs();
    c.forward(o);
    const MapsInput input{.q = c.q, .k = c.k};
    const std::pair<MapValue, const Matrix*> values[] = {{MapValue::scaled_score, &expected.scaled},
                                                         {MapValue::capped_score, &expected.capped},
                                                         {MapValue::score, &expected.score},
                                                         {MapValue::probability, &expected.p},
                                                         {MapValue::dropped, &expected.dropped}};
    for (const auto& [value, matrix] : values) {
      SCOPED_TRACE(static_cast<int>(value));
      const StridedTensor map = layout.empty_strided(DType::f64, c.sizes.pairs());
      attention_map(input, map, c.options, value);
      const Tensor wanted = to_tensor(*matrix, c.sizes.pairs());
      EXPECT_TRUE(near(map, wanted, 1e-13 * std::max(1.0, largest_magnitude(wanted))));
      EXPECT_TRUE(map.padding_is_intact());
    }
    if (HasFailure()) return;
  }
}

TEST(ReferenceSweep, KeysAndValuesInAnotherDtype) {
  std::map<DType, int> seen;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 2'000'000), layout(seed + 1'000'000);
    AttentionCase c = drawn(seed);
    draw_key_storage(random, c);
    ++seen[c.k.dtype()];
    const FullResults expected = naive_attention(c);
    AttentionOutputs o = c.make_outputs(&layout);
    o.attention_weights = c.keep(layout.empty_strided(c.dtype, c.sizes.pairs()));
    c.forward(o);
    EXPECT_TRUE(agrees(o.out, to_tensor(expected.out, c.sizes.out()))) << "out";
    EXPECT_TRUE(agrees(o.lse, to_tensor(expected.lse, c.sizes.lse()))) << "lse";
    EXPECT_TRUE(agrees(o.attention_weights, to_tensor(expected.p, c.sizes.pairs()))) << "attention_weights";
    const StridedTensor map = layout.empty_strided(DType::f64, c.sizes.pairs());
    attention_map(c.maps(), map, c.options, MapValue::capped_score);
    EXPECT_TRUE(near(map, to_tensor(expected.capped, c.sizes.pairs()), 1e-12)) << "map";
    EXPECT_TRUE(padding_is_intact(c.strided()));
    if (HasFailure()) return;
  }
  for (const DType storage : {DType::bf16, DType::f16, DType::i8}) EXPECT_GE(seen[storage], 50) << info(storage).name;
}

// Counts how often each rule occurs in the random problems. Every rule must occur.
TEST(ReferenceSweep, CoversEveryRule) {
  std::map<std::string, int> seen;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const AttentionCase c = drawn(seed);
    const SdpaOptions& o = c.options;
    const Mask& m = o.mask;
    const FullMatrices full = full_matrices(c.q, c.k, c.v, c.d_out, o);
    const bool mixed = std::find(full.keep.begin(), full.keep.end(), true) != full.keep.end() &&
                       std::find(full.keep.begin(), full.keep.end(), false) != full.keep.end();
    seen["causal"] += m.causal && mixed;
    seen["window"] += (m.window.left || m.window.right) && mixed;
    seen["key lengths per sequence"] += m.key_lengths && m.key_lengths.rank() == c.sizes.lead.size() && mixed;
    seen["key lengths per query"] += m.key_lengths && m.key_lengths.rank() > c.sizes.lead.size() && mixed;
    seen["key starts per sequence"] += m.key_starts && m.key_starts.rank() == c.sizes.lead.size() && mixed;
    seen["key starts per query"] += m.key_starts && m.key_starts.rank() > c.sizes.lead.size() && mixed;
    seen["key starts and key lengths"] += m.key_starts && m.key_lengths && mixed;
    seen["key starts and documents"] += m.key_starts && m.query_offsets.numel() > 2 && mixed;
    seen["attend"] += m.attend && mixed;
    seen["block"] += m.block && mixed;
    seen["attend_keys"] += m.attend_keys && mixed;
    seen["block_keys"] += m.block_keys && mixed;
    seen["block lists"] += m.blocks.lists && mixed;
    const bool documents = m.query_offsets.numel() > 2 && mixed;
    seen["documents, query_offsets alone"] += documents && !m.key_offsets;
    seen["documents, with key_offsets"] += documents && m.key_offsets;
    seen["diagonal per sequence"] += m.diagonal_offsets.numel() > 1 && mixed;
    seen["bias"] += static_cast<bool>(o.bias);
    seen["bias from a table by strides"] += static_cast<bool>(c.table);
    const RelativeBias& relative = o.relative_bias;
    seen["slopes"] += static_cast<bool>(relative.slopes);
    seen["buckets, bidirectional"] += relative.table && relative.bidirectional;
    seen["buckets, unidirectional"] += relative.table && !relative.bidirectional;
    seen["relative bias and documents"] += relative && documents;
    seen["relative bias with a diagonal"] += static_cast<bool>(relative.diagonal);
    seen["relative bias and a diagonal offset for each sequence"] += relative && m.diagonal_offsets.numel() > 1;
    seen["softcap"] += o.softcap > 0;
    seen["sink per head"] += o.sink && o.sink.rank() == 1;
    seen["sink that broadcasts"] += o.sink && o.sink.rank() > 1;
    seen["sink in the dtype of lse"] += o.sink && o.sink.dtype() != c.dtype;
    seen["sink and documents"] += o.sink && documents;
    seen["grouped heads"] += c.sizes.group > 1 && c.sizes.kv_heads > 1;
    seen["V != H"] += c.sizes.v_width != c.sizes.qk_width;
    seen["dropout"] += o.dropout.p > 0 && !o.dropout.keep;
    seen["dropout with given bits"] += static_cast<bool>(o.dropout.keep);
    seen["uniform"] += o.empty_rows == EmptyRows::uniform && mixed;
    seen["unmasked"] += o.empty_rows == EmptyRows::unmasked && mixed;
    seen["no keys"] += c.sizes.keys == 0;
    seen["four leading dimensions"] += c.sizes.lead.size() == 4;
    seen["no leading dimension"] += c.sizes.lead.empty();
  }
  for (const auto& [rule, times] : seen) EXPECT_GE(times, 10) << rule;
}

}  // namespace
}  // namespace polyhead::test
