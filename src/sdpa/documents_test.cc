// Packed documents: forward, backward and maps equal those of each document alone, bit for bit, on every backend.
#include "polyhead/maps.h"
#include "support/each_backend.h"
#include "support/kernel_case.h"

namespace polyhead::test {
namespace {

// What belongs to one document of a case: queries [t, t_end), keys [s, s_end).
struct Place {
  std::int64_t t, t_end, s, s_end;

  template <class View>
  View rows(const View& view) const { return view ? view.slice(-2, t, t_end) : view; }
  template <class View>
  View keys(const View& view) const { return view ? view.slice(-2, s, s_end) : view; }
  template <class View>
  View pairs(const View& view) const { return view ? view.slice(-2, t, t_end).slice(-1, s, s_end) : view; }
};

std::vector<Place> places_of(const AttentionCase& c) {
  const Mask& mask = c.options.mask;
  const std::vector<double> queries = to_doubles(mask.query_offsets), keys = mask.key_offsets ? to_doubles(mask.key_offsets) : queries;
  std::vector<Place> places;
  for (std::size_t d = 0; d + 1 < queries.size(); ++d) {
    const auto at = [](double x) { return static_cast<std::int64_t>(x); };
    places.push_back({at(queries[d]), at(queries[d + 1]), at(keys[d]), at(keys[d + 1])});
  }
  return places;
}

// The document as a problem of its own: everything that broadcasts written out and cut.
AttentionCase alone(AttentionCase& c, const Place& place) {
  AttentionCase d;
  d.sizes = c.sizes, d.dtype = c.dtype, d.options = c.options;
  d.sizes.queries = place.t_end - place.t, d.sizes.keys = place.s_end - place.s;
  d.q = place.rows(c.q), d.d_out = place.rows(c.d_out), d.k = place.keys(c.k), d.v = place.keys(c.v);
  const Shape pairs = c.sizes.pairs();
  Mask& mask = d.options.mask;
  mask.query_offsets = mask.key_offsets = {};
  if (mask.attend) mask.attend = place.pairs(mask.attend.expand(pairs));
  if (mask.block) mask.block = place.pairs(mask.block.expand(pairs));
  for (ConstTensorView* keys : {&mask.attend_keys, &mask.block_keys}) {
    if (*keys) *keys = keys->expand(c.sizes.keys_of()).slice(-1, place.s, place.s_end);
  }
  if (mask.key_lengths) {
    const bool per_query = mask.key_lengths.rank() > c.sizes.lead.size();
    Tensor lengths = Tensor::copy_of(per_query ? mask.key_lengths.slice(-1, place.t, place.t_end) : mask.key_lengths, DType::i64);
    for (std::int64_t i = 0; i < lengths.numel(); ++i) {
      lengths.data<std::int64_t>()[i] = std::clamp<std::int64_t>(lengths.data<std::int64_t>()[i] - place.s, 0, d.sizes.keys);
    }
    mask.key_lengths = d.keep(std::move(lengths));
  }
  if (d.options.sink) d.options.sink = place.rows(sink_rows(d.options.sink).expand(c.sizes.lse()).unsqueeze(-1)).select(-1, 0);
  if (d.options.bias) d.options.bias = place.pairs(d.options.bias.expand(pairs));
  if (d.options.dropout.p > 0 || d.options.dropout.keep) {
    Tensor bits(DType::boolean, pairs);
    d.options.dropout.keep ? copy(d.options.dropout.keep.expand(pairs), bits) : dropout_keep_bits(d.options.dropout.p, d.options.dropout.seed, bits);
    d.options.dropout.keep = place.pairs(ConstTensorView(d.keep(std::move(bits))));
  }
  return d;
}

AttentionCase draw_packed(Random& random, DType dtype, const AttentionSizes& sizes) {
  AttentionCase c = draw_case(random, dtype, sizes);
  const std::int64_t documents = random.integer(1, 5);
  c.options.mask.query_offsets = c.keep(draw_offsets(random, DType::i64, documents, sizes.queries));
  c.options.mask.key_offsets = sizes.queries == sizes.keys && random.coin() ? TensorView() : c.keep(draw_offsets(random, DType::i32, documents, sizes.keys));
  drop_ambiguous_lengths(c.options.mask);
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

TEST_P(DocumentsOf, EachEqualsThatDocumentAloneBitForBit) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_packed(random, kDTypes[seed % 5], draw_packed_sizes(random));
    c.options.backend = GetParam();
    AttentionOutputs o = c.make_outputs();
    o.attention_weights = c.keep(Tensor(c.dtype, c.sizes.pairs()));
    c.run(o);
    const bool own_elements = o.d_bias && !c.table && o.d_bias.shape() == c.sizes.pairs();  // else documents add into the same elements
    for (const Place& place : places_of(c)) {
      AttentionCase d = alone(c, place);
      AttentionOutputs x = d.make_outputs();
      x.attention_weights = d.keep(Tensor(d.dtype, d.sizes.pairs()));
      if (!own_elements) x.d_bias = {};
      d.run(x);
      EXPECT_TRUE(same_bits(place.rows(o.out), x.out)) << "out";
      EXPECT_TRUE(same_bits(place.rows(o.lse.unsqueeze(-1)), x.lse.unsqueeze(-1))) << "lse";
      EXPECT_TRUE(same_bits(place.pairs(o.attention_weights), x.attention_weights)) << "attention_weights";
      EXPECT_TRUE(same_bits(place.rows(o.d_q), x.d_q)) << "d_q";
      EXPECT_TRUE(same_bits(place.keys(o.d_k), x.d_k)) << "d_k";
      EXPECT_TRUE(same_bits(place.keys(o.d_v), x.d_v)) << "d_v";
      if (o.d_sink && o.d_sink.shape() == c.sizes.lse()) {
        EXPECT_TRUE(same_bits(place.rows(o.d_sink.unsqueeze(-1)), x.d_sink.unsqueeze(-1))) << "d_sink";
      }
      if (own_elements) {
        EXPECT_TRUE(same_bits(place.pairs(o.d_bias), x.d_bias)) << "d_bias";
      }
      for (const MapValue value : {MapValue::capped_score, MapValue::score, MapValue::probability, MapValue::dropped}) {
        Tensor whole(DType::f64, c.sizes.pairs()), part(DType::f64, d.sizes.pairs());
        attention_map({.q = c.q, .k = c.k}, whole, c.options, value);
        attention_map({.q = d.q, .k = d.k}, part, d.options, value);
        EXPECT_TRUE(same_bits(place.pairs(whole.view()), part)) << "map " << static_cast<int>(value);
      }
      if (HasFailure()) return;
    }
  }
}

// Pairs of two documents: no attention weight, no gradient of the bias, score -inf. Top keys and chosen rows count in the packed sequence.
TEST_P(DocumentsOf, ShareNothing) {
  Random random(7);
  AttentionCase c;
  c.sizes = {.lead = {2}, .kv_heads = 1, .group = 2, .queries = 5, .keys = 7, .qk_width = 4, .v_width = 3};
  c.dtype = DType::f32;
  c.draw_inputs(random);
  c.options.backend = GetParam();
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
  for (const TensorView& gradient : {o.d_k, o.d_v}) {  // of the key of a document without queries
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
