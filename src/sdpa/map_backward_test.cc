// Compares gradients of attention maps with central differences. Also compares them with the backward pass of attention whose values are an identity matrix,
// because the output of such attention is the map.
#include <cmath>
#include <limits>

#include "polyhead/map_gradients.h"
#include "support/attention_case.h"
#include "support/each_backend.h"
#include "support/gradients.h"

namespace polyhead::test {
namespace {

using MapGradientsOf = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, MapGradientsOf, testing::ValuesIn(backends()), name_of_backend);

void expect_close(ConstTensorView actual, ConstTensorView expected, double tolerance) {
  EXPECT_TRUE(near(actual, expected, tolerance * std::max(1.0, largest_magnitude(expected))));
}

struct Gradients {
  Tensor q, k, bias, relative_bias, sink;

  explicit Gradients(const AttentionCase& c, DType dtype = DType::f64) : q(dtype, c.sizes.q()), k(dtype, c.sizes.k()) {
    if (c.options.bias) bias = Tensor(c.options.bias.dtype(), c.options.bias.shape());
    if (const ConstTensorView& of = c.options.relative_bias.parameter()) relative_bias = Tensor(of.dtype(), of.shape());
    if (c.options.sink) sink = Tensor(c.options.sink.dtype(), c.options.sink.shape());
  }
  MapBackward of(ConstTensorView d_map, ConstTensorView d_lse = {}) {
    return {.d_map = d_map, .d_lse = d_lse, .d_q = q, .d_k = k, .d_bias = bias, .d_relative_bias = relative_bias, .d_sink = sink};
  }
};

// Returns a random float64 case. attention_map_backward() refuses EmptyRows::uniform, so cases with this mode get EmptyRows::zero.
AttentionCase case_with_maps(std::uint64_t seed, const Backend* backend) {
  Random random(seed);
  AttentionSizes sizes = draw_sizes(random);
  AttentionCase c = draw_case(random, DType::f64, sizes);
  c.options.backend = backend;
  if (c.options.empty_rows == EmptyRows::uniform) c.options.empty_rows = EmptyRows::zero;
  return c;
}

MapValue value_of(const AttentionCase& c) { return c.options.dropout.p > 0 || c.options.dropout.keep ? MapValue::dropped : MapValue::probability; }

TEST_P(MapGradientsOf, AreThoseOfAttentionWithAnIdentityForValues) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    AttentionCase c = case_with_maps(seed, GetParam());
    if (c.options.score_rule || numel(c.sizes.pairs()) > 100000) continue;
    Random random(seed + 1);
    const Tensor d_map = random.tensor(DType::f64, c.sizes.pairs());
    Gradients ours(c), theirs(c);
    attention_map_backward(c.maps(), ours.of(d_map), c.options, value_of(c));

    const std::int64_t keys = c.sizes.keys;
    Tensor identity(DType::f64, {keys, keys}), out(DType::f64, c.sizes.pairs()), lse(DType::f64, c.sizes.lse());
    for (std::int64_t s = 0; s < keys; ++s) identity.data<double>()[s * keys + s] = 1;
    const ConstTensorView v = identity.view().expand(c.sizes.with({c.sizes.kv_heads, keys, keys}));
    sdpa_forward({.q = c.q, .k = c.k, .v = v, .out = out, .lse = lse}, c.options);
    sdpa_backward({.q = c.q, .k = c.k, .v = v, .out = out, .lse = lse, .d_out = d_map, .d_q = theirs.q, .d_k = theirs.k, .d_v = {}, .d_bias = theirs.bias,
                   .d_relative_bias = theirs.relative_bias, .d_sink = theirs.sink}, c.options);
    expect_close(ours.q, theirs.q, 1e-10), expect_close(ours.k, theirs.k, 1e-10);
    if (ours.bias) expect_close(ours.bias, theirs.bias, 1e-10);
    if (ours.relative_bias) expect_close(ours.relative_bias, theirs.relative_bias, 1e-10);
    if (ours.sink) expect_close(ours.sink, theirs.sink, 1e-10);
  }
}

struct Setting {
  const char* name;
  void (*set)(Random& random, AttentionCase& c);
};

const Setting kSettings[] = {
    {"plain", [](Random&, AttentionCase&) {}},
    {"softcap", [](Random&, AttentionCase& c) { c.options.softcap = 0.7, c.options.scale = -0.9; }},
    {"bias", [](Random& random, AttentionCase& c) { c.options.bias = c.keep(random.tensor(DType::f64, {4, 1, 5})); }},
    {"bias of one row", [](Random& random, AttentionCase& c) { c.options.bias = c.keep(random.tensor(DType::f64, {5})); }},
    {"sink", [](Random& random, AttentionCase& c) { c.options.sink = c.keep(random.tensor(DType::f64, {4})), c.options.softcap = 2; }},
    {"sink of each row", [](Random& random, AttentionCase& c) { c.options.sink = c.keep(random.tensor(DType::f64, c.sizes.lse())); }},
    {"slopes", [](Random& random, AttentionCase& c) { c.options.relative_bias.slopes = c.keep(random.tensor(DType::f64, {4})), c.options.mask.causal = Causal::bottom_right(); }},
    {"table", [](Random& random, AttentionCase& c) { c.options.relative_bias = {.table = c.keep(random.tensor(DType::f64, {4, 8})), .max_distance = 5}; }},
    {"documents",
     [](Random& random, AttentionCase& c) {
       c.options.mask.query_offsets = c.keep(Tensor::of<std::int64_t>({3}, {0, 2, 3})), c.options.mask.key_offsets = c.keep(Tensor::of<std::int64_t>({3}, {0, 2, 5}));
       c.options.relative_bias.slopes = c.keep(random.tensor(DType::f64, {4}));
     }},
    {"blocks", [](Random&, AttentionCase& c) { c.options.mask.blocks = {.lists = c.keep(Tensor::of<std::int64_t>({2, 1}, {1, 0})), .size = {.queries = 2, .keys = 3}}; }},
    {"window of each sequence",
     [](Random&, AttentionCase& c) { c.options.mask.window = {.left = 1, .right = 1}, c.options.mask.diagonal_offsets = c.keep(Tensor::of<std::int64_t>({2}, {0, 2})); }},
    {"empty rows", [](Random&, AttentionCase& c) { c.options.mask.key_lengths = c.keep(Tensor::of<std::int64_t>({2}, {0, 3})); }},
    {"unmasked rows",
     [](Random&, AttentionCase& c) { c.options.mask.key_lengths = c.keep(Tensor::of<std::int64_t>({2}, {0, 3})), c.options.empty_rows = EmptyRows::unmasked; }},
    {"dropout", [](Random&, AttentionCase& c) { c.options.dropout = {.p = 0.4, .seed = 5}; }},
    {"keep", [](Random& random, AttentionCase& c) { c.options.dropout = {.p = 0.25, .keep = c.keep(random.tensor(DType::boolean, {4, 3, 5}))}; }},
};

TEST_P(MapGradientsOf, AreCentralDifferences) {
  for (const Setting& setting : kSettings) {
    SCOPED_TRACE(setting.name);
    Random random(7);
    AttentionCase c = case_of(random, DType::f64, {.lead = {2}, .kv_heads = 2, .group = 2, .queries = 3, .keys = 5, .qk_width = 3, .v_width = 2});
    setting.set(random, c);
    c.options.backend = GetParam();
    const TensorView q = c.keep(Tensor::copy_of(c.q)), k = c.keep(Tensor::copy_of(c.k));
    c.q = q, c.k = k;
    const auto own = [&](ConstTensorView& view) {
      TensorView copy;
      if (view) view = copy = c.keep(Tensor::copy_of(view));
      return copy;
    };
    RelativeBias& relative = c.options.relative_bias;
    const TensorView bias = own(c.options.bias), sink = own(c.options.sink), of_distance = own(relative.slopes ? relative.slopes : relative.table);
    const Tensor d_map = random.tensor(DType::f64, c.sizes.pairs()), d_lse = random.tensor(DType::f64, c.sizes.lse());
    // The lse of an empty row is -infinity, so central differences cannot be computed for it.
    const bool of_lse = c.options.dropout.p == 0 && std::string_view(setting.name) != "empty rows";
    Gradients found(c);
    attention_map_backward(c.maps(), found.of(d_map, of_lse ? ConstTensorView(d_lse) : ConstTensorView()), c.options, value_of(c));
    Tensor map(DType::f64, c.sizes.pairs()), out(DType::f64, c.sizes.out()), lse(DType::f64, c.sizes.lse());
    const auto loss = [&] {
      attention_map(c.maps(), map, c.options, value_of(c));
      if (!of_lse) return weighted_sum(map, d_map);
      sdpa_forward({.q = c.q, .k = c.k, .v = c.v, .out = out, .lse = lse}, c.options);
      return weighted_sum(map, d_map) + weighted_sum(lse, d_lse);
    };
    std::vector<Leaf> leaves{{"q", q, found.q}, {"k", k, found.k}};
    if (bias) leaves.push_back({"bias", bias, found.bias});
    if (sink) leaves.push_back({"sink", sink, found.sink});
    if (of_distance) leaves.push_back({"relative_bias", of_distance, found.relative_bias});
    expect_gradients(loss, leaves);
  }
}

TEST_P(MapGradientsOf, OfChosenHeadsMayBeAddedToTheGradients) {
  Random random(9);
  AttentionCase c = case_of(random, DType::f64, {.lead = {2}, .kv_heads = 2, .group = 2, .queries = 3, .keys = 5, .qk_width = 3, .v_width = 2}, GetParam());
  Tensor every = random.tensor(DType::f64, c.sizes.pairs()), some(DType::f64, {2, 2, 3, 5});
  const std::int64_t heads[] = {3, 0};
  for (int i = 0; i < 2; ++i) copy(std::as_const(every).view().select(1, heads[i]), some.view().select(1, i));
  for (const int n : {1, 2}) fill(every.view().select(1, n), 0);
  Gradients whole(c), part(c);
  attention_map_backward(c.maps(), whole.of(every), c.options);
  MapBackward given = part.of(some);
  given.heads = heads;
  attention_map_backward(c.maps(), given, c.options);
  expect_close(part.q, whole.q, 1e-14), expect_close(part.k, whole.k, 1e-14);
  given.add = true;
  attention_map_backward(c.maps(), given, c.options);
  for (Tensor* twice : {&whole.q, &whole.k}) {
    for (std::int64_t i = 0; i < twice->numel(); ++i) twice->data<double>()[i] *= 2;
  }
  expect_close(part.q, whole.q, 1e-14), expect_close(part.k, whole.k, 1e-14);
}

// A NaN must not change the gradients if it is in d_map where p is 0, or in a masked key.
TEST_P(MapGradientsOf, MaskedPairsMayBeNaN) {
  Random random(11);
  AttentionCase c = case_of(random, DType::f32, {.lead = {1}, .kv_heads = 1, .group = 2, .queries = 3, .keys = 5, .qk_width = 3, .v_width = 2}, GetParam());
  c.options.mask.key_lengths = c.keep(Tensor::of<std::int64_t>({1}, {4}));
  Tensor k = Tensor::copy_of(c.k), d_map = random.tensor(DType::f32, c.sizes.pairs());
  c.k = k;
  Gradients clean(c, DType::f32), spoilt(c, DType::f32);
  attention_map_backward(c.maps(), clean.of(d_map), c.options);
  fill(k.view().select(-2, 4), kNaN), fill(d_map.view().select(-1, 4), kNaN);
  attention_map_backward(c.maps(), spoilt.of(d_map), c.options);
  EXPECT_TRUE(same_bits(clean.q, spoilt.q));
  EXPECT_TRUE(same_bits(clean.k, spoilt.k));
}

TEST_P(MapGradientsOf, WithoutQueriesAreZero) {
  Random random(17);
  AttentionCase c = case_of(random, DType::f32, {.lead = {1}, .kv_heads = 2, .group = 1, .queries = 0, .keys = 5, .qk_width = 3, .v_width = 2}, GetParam());
  Tensor d_k(DType::f32, c.sizes.k());
  const Tensor d_map(DType::f32, c.sizes.pairs());
  fill(d_k, 7);
  attention_map_backward(c.maps(), {.d_map = d_map, .d_k = d_k}, c.options);
  EXPECT_EQ(largest_magnitude(d_k), 0);
}

TEST_P(MapGradientsOf, AnInfiniteSinkMakesNaN) {
  Random random(19);
  AttentionCase c = case_of(random, DType::f64, {.lead = {1}, .kv_heads = 1, .group = 2, .queries = 3, .keys = 5, .qk_width = 3, .v_width = 2}, GetParam());
  const double infinity = std::numeric_limits<double>::infinity();
  c.options.sink = c.keep(Tensor::of<double>({2}, {infinity, -infinity}));
  Gradients gradients(c);
  const Tensor d_map = random.tensor(DType::f64, c.sizes.pairs());
  attention_map_backward(c.maps(), gradients.of(d_map), c.options);
  EXPECT_TRUE(std::isnan(gradients.sink.data<double>()[0]));
  EXPECT_EQ(gradients.sink.data<double>()[1], 0);
}

// In a row without keys lse equals the sink, so the gradient of the sink is d_lse. A sink that is not finite makes its row NaN, even if the row has no keys.
TEST_P(MapGradientsOf, ARowWithoutKeysBelongsToItsSink) {
  Random random(20);
  for (const std::int64_t keys : {0, 5}) {
    for (const double sink : {0.5, kInfinity, kNaN}) {
      AttentionCase c = case_of(random, DType::f64, {.lead = {1}, .kv_heads = 1, .group = 1, .queries = 2, .keys = keys, .qk_width = 3, .v_width = 2}, GetParam());
      if (keys > 0) c.options.mask.key_lengths = c.keep(Tensor::of<std::int32_t>({1}, {0}));
      c.options.sink = c.keep(Tensor::of<double>({1}, {sink}));
      Gradients gradients(c);
      const Tensor d_map(DType::f64, c.sizes.pairs()), d_lse = Tensor::of<double>({1, 1, 2}, {1, 1});
      attention_map_backward(c.maps(), gradients.of(d_map, d_lse), c.options);
      const double found = gradients.sink.data<double>()[0];
      EXPECT_TRUE(std::isfinite(sink) ? found == 2 : std::isnan(found)) << keys << " keys, sink " << sink << ": " << found;
    }
  }
}

// The attention weight of a sink at -40 is about 1e-18. This is less than the rounding error of 1 - sum p.
TEST_P(MapGradientsOf, ATinySinkKeepsItsDigits) {
  Random random(23);
  AttentionCase c = case_of(random, DType::f64, {.lead = {1}, .kv_heads = 1, .group = 2, .queries = 3, .keys = 5, .qk_width = 3, .v_width = 2}, GetParam());
  const Tensor d_map = random.tensor(DType::f64, c.sizes.pairs());
  const auto d_sink = [&](double sink) {
    c.options.sink = c.keep(Tensor::of<double>({2}, {sink, sink}));
    Gradients gradients(c);
    attention_map_backward(c.maps(), gradients.of(d_map), c.options);
    return std::vector<double>(gradients.sink.data<double>(), gradients.sink.data<double>() + 2);
  };
  // For very negative sinks d_sink is about exp(sink) times a constant. The relative error of this approximation is 1e-5 for a sink of -12, and far smaller for
  // -40.
  const std::vector<double> small = d_sink(-40), larger = d_sink(-12);
  for (std::size_t n = 0; n < 2; ++n) {
    EXPECT_GT(std::abs(small[n]), 1e-21);
    EXPECT_NEAR(small[n] / larger[n] * std::exp(28.0), 1, 1e-4);
  }
}

TEST(MapGradients, SayWhatIsWrong) {
  Random random(13);
  AttentionCase c = case_of(random, DType::f32, {.lead = {1}, .kv_heads = 1, .group = 2, .queries = 3, .keys = 5, .qk_width = 3, .v_width = 2});
  const Tensor d_map(DType::f32, c.sizes.pairs()), wrong(DType::f32, {1, 2, 3, 4});
  Tensor d_q(DType::f32, c.sizes.q()), d_bias(DType::f32, {5});
  const auto message = [&](const MapBackward& given, MapValue value = MapValue::probability) {
    return error_message([&] { attention_map_backward(c.maps(), given, c.options, value); });
  };
  EXPECT_EQ(message({.d_map = wrong, .d_q = d_q}), "attention_map_backward: d_map is [1,2,3,4]; it must be [*,N,T,S] = [1,2,3,5]");
  EXPECT_EQ(message({.d_map = d_map, .d_bias = d_bias}), "attention_map_backward: d_bias is given without bias");
  const std::int64_t outside[] = {2}, twice[] = {1, 1};
  EXPECT_EQ(message({.heads = outside, .d_q = d_q}), "attention_map_backward: there is no head 2; heads lie in [0,2)");
  EXPECT_EQ(message({.heads = twice, .d_q = d_q}), "attention_map_backward: head 1 is given twice");
  EXPECT_EQ(message({.d_map = d_map, .d_q = d_q}, MapValue::score), "attention_map_backward: the map holds scores; only maps of probabilities, before or after dropout, have this gradient");
  c.options.empty_rows = EmptyRows::uniform;
  EXPECT_EQ(message({.d_map = d_map, .d_q = d_q}), "attention_map_backward: empty_rows is uniform; attention weights have no gradient with it");
}

}  // namespace
}  // namespace polyhead::test
