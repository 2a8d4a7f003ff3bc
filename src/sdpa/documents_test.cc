// Tests packed documents on every backend. Forward, backward and maps must have the same bits as calls with each document alone.
#include "polyhead/maps.h"
#include "support/case_part.h"
#include "support/each_backend.h"
#include "support/kernel_case.h"

namespace polyhead::test {
namespace {

std::vector<CasePart> documents_of(const AttentionCase& c) {
  const Mask& mask = c.options.mask;
  const std::vector<double> queries = to_doubles(mask.query_offsets), keys = mask.key_offsets ? to_doubles(mask.key_offsets) : queries;
  std::vector<CasePart> documents;
  for (std::size_t d = 0; d + 1 < queries.size(); ++d) {
    const auto at = [](double x) { return static_cast<std::int64_t>(x); };
    documents.push_back({at(queries[d]), at(queries[d + 1]), at(keys[d]), at(keys[d + 1])});
  }
  return documents;
}

AttentionCase draw_packed(Random& random, DType dtype, const AttentionSizes& sizes) {
  AttentionCase c = draw_case(random, dtype, sizes);
  const std::int64_t documents = random.integer(1, 5);
  c.options.mask.query_offsets = c.keep(draw_offsets(random, DType::i64, documents, sizes.queries));
  c.options.mask.key_offsets = sizes.queries == sizes.keys && random.coin() ? TensorView() : c.keep(draw_offsets(random, DType::i32, documents, sizes.keys));
  drop_ambiguous_ranges(c.options.mask);
  c.options.mask.diagonal_offsets = {};
  return c;
}

AttentionSizes draw_packed_sizes(Random& random) {
  AttentionSizes z = draw_block_sizes(random);
  z.queries = random.pick<std::int64_t>({1, 17, 40, 97, 200}), z.keys = random.coin() ? z.queries : random.pick<std::int64_t>({1, 33, 97, 300});
  z.qk_width = random.pick<std::int64_t>({3, 8, 16}), z.v_width = random.pick<std::int64_t>({2, 16, 33});
  return z;
}

using DocumentsOf = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, DocumentsOf, testing::ValuesIn(backends()), name_of_backend);

TEST_P(DocumentsOf, EachDocumentHasTheBitsOfACallWithItAlone) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_packed(random, kDTypes[seed % 5], draw_packed_sizes(random));
    c.options.backend = GetParam();
    AttentionOutputs o = c.make_outputs();
    o.attention_weights = c.keep(Tensor(c.dtype, c.sizes.pairs()));
    c.run(o);
    for (const CasePart& document : documents_of(c)) {
      AttentionCase d = alone(c, document);
      d.options.mask.query_offsets = d.options.mask.key_offsets = {};
      expect_same_bits_alone(c, o, document, d);
      expect_same_maps_alone(c, document, d);
      if (HasFailure()) return;
    }
  }
}

// If a query and a key are in different documents, their attention weight is 0, their score is -inf, and the gradient of their bias is 0. The indices of top
// keys and of chosen rows are positions in the packed sequence.
TEST_P(DocumentsOf, ShareNothing) {
  Random random(7);
  AttentionCase c = case_of(random, DType::f32, {.lead = {2}, .group = 2, .queries = 5, .keys = 7, .qk_width = 4, .v_width = 3}, GetParam());
  c.options.bias = c.keep(random.tensor(DType::f32, c.sizes.pairs()));
  c.options.mask.query_offsets = c.keep(Tensor::of<std::int32_t>({4}, {0, 2, 2, 5}));
  c.options.mask.key_offsets = c.keep(Tensor::of<std::int64_t>({4}, {0, 3, 4, 7}));
  AttentionOutputs o = c.make_outputs();
  o.attention_weights = c.keep(Tensor(DType::f32, c.sizes.pairs()));
  for (const TensorView& view : {o.attention_weights, o.d_bias, o.d_k, o.d_v}) fill(view, 9);
  c.run(o);
  Tensor score(DType::f32, c.sizes.pairs()), chosen(DType::f64, {2, 2, 3, 7}), p(DType::f32, {2, 2, 5, 3}), key(DType::i64, {2, 2, 5, 3});
  attention_map({.q = c.q, .k = c.k}, score, c.options, MapValue::score);
  const std::array<std::int64_t, 3> rows{4, 0, 3};
  attention_map_rows({.q = c.q, .k = c.k}, rows, chosen, c.options);
  attention_top_keys({.q = c.q, .k = c.k}, p, key, c.options);
  const std::vector<double> weights = to_doubles(o.attention_weights), d_bias = to_doubles(o.d_bias), scores = to_doubles(score), top = to_doubles(key);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::size_t t = i / 7 % 5, s = i % 7;
    const bool same = t < 2 ? s < 3 : s >= 4;
    EXPECT_EQ(weights[i] > 0, same);
    EXPECT_EQ(d_bias[i] != 0, same);
    EXPECT_EQ(std::isfinite(scores[i]), same);
  }
  for (std::size_t i = 0; i < top.size(); ++i) EXPECT_EQ(top[i] < 3, i / 3 % 5 < 2);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(near(chosen.view().select(2, static_cast<std::int64_t>(i)), o.attention_weights.select(2, rows[i]), 1e-6));
  }
  for (const TensorView& gradient : {o.d_k, o.d_v}) {  // a key in a document without queries must have zero gradients
    for (const double x : to_doubles(ConstTensorView(gradient).select(-2, 3))) EXPECT_EQ(x, 0);
  }
}

TEST(Documents, AreExplained) {
  const Tensor q(DType::f32, {1, 2, 6, 4}), offsets = Tensor::of<std::int32_t>({4}, {0, 1, 5, 6});
  Tensor out(q);
  SdpaOptions options;
  options.mask.query_offsets = offsets, options.mask.causal = Causal::top_left();
  const std::string text = explain({.q = q, .k = q, .v = q, .out = out}, options);
  EXPECT_NE(text.find("3 documents"), std::string::npos) << text;
  EXPECT_NE(text.find("4 queries and 4 keys"), std::string::npos) << text;
}

}  // namespace
}  // namespace polyhead::test
