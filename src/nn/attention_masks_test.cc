// Tests a layer and its gradients with masked positions, and with documents that share a sequence.
#include "nn/attention_test_trial.h"
#include "support/last_piece_first.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::same_bits;

// Puts NaN or infinity into keys that no query may attend to. The gradients of all parameters must keep their bits.
TEST(MultiHeadAttentionMasks, NonFiniteInputsThatAreMaskedReachNoParameter) {
  const Tensor lengths = Tensor::of<std::int64_t>({2}, {3, 5}), attend_keys = Tensor::of<bool>({2, 5}, {true, true, true, false, false, true, true, true, true, true});
  Tensor block(DType::boolean, {2, 1, 4, 5});
  fill(block.view().select(0, 0).slice(-1, 3, 5), 1);
  const Mask masks[] = {{.key_lengths = lengths}, {.attend_keys = attend_keys}, {.block = block}, {.causal = Causal::top_left()}};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (std::size_t m = 0; m < std::size(masks); ++m) {
      for (const double poison : {std::nan(""), HUGE_VAL}) {
        SCOPED_TRACE(cat(info(dtype).name, " mask ", m, " ", poison));
        const MultiHeadAttention layer({.query_width = 6, .key_width = 8, .heads = 4, .kv_heads = 2, .head_width = 3, .dtype = dtype, .seed = 3});
        Random random(4);
        const std::int64_t queries = m == 3 ? 3 : 4;  // with causal (top_left), queries 0 to 2 attend to keys 0 to 2 only
        const Tensor query = random.tensor(dtype, {2, queries, 6});
        Tensor key = random.tensor(dtype, {2, 5, 8}), out(dtype, {2, queries, 6});
        const Tensor d_out = random.tensor(dtype, out.shape());
        const auto gradients = [&] {
          MultiHeadAttention grads = zeros_like(layer);
          MultiHeadAttention::Saved saved;
          layer.forward({.query = query, .key = key}, out, {.mask = masks[m]}, &saved);
          layer.backward(saved, d_out, {.parameters = &grads});
          return grads;
        };
        const MultiHeadAttention clean = gradients();
        for (std::int64_t b = 0; b < (m == 3 ? 2 : 1); ++b) fill(key.view().select(0, b).slice(0, 3, 5), poison);
        const MultiHeadAttention poisoned = gradients();
        const auto expected = parameters(clean), given = parameters(poisoned);
        for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(*given[i].second, *expected[i].second)) << expected[i].first;
      }
    }
  }
}

// key_starts must mask keys as attend_keys does: in attention, in the mean of a global query, and beside keys that the layer adds.
TEST(MultiHeadAttentionMasks, KeyStartsAreAMaskOfTheKeysBefore) {
  const Tensor x = Random(1).tensor(DType::f64, {2, 5, 4}), starts = Tensor::of<std::int32_t>({2}, {2, 0});
  const Tensor attend_keys = Tensor::of<bool>({2, 5}, {false, false, true, true, true, true, true, true, true, true});
  for (const MultiHeadAttentionConfig& config : {MultiHeadAttentionConfig{.query_width = 4, .heads = 2, .dtype = DType::f64, .seed = 3},
                                                 MultiHeadAttentionConfig{.query_width = 4, .heads = 2, .add_zero_attn = true, .dtype = DType::f64, .seed = 3},
                                                 MultiHeadAttentionConfig{.query_width = 4, .heads = 2, .global_query = GlobalQuery::masked_mean, .dtype = DType::f64, .seed = 3}}) {
    SCOPED_TRACE(cat(config.add_zero_attn, ' ', static_cast<int>(config.global_query)));
    const MultiHeadAttention layer(config);
    const std::int64_t rows = config.global_query == GlobalQuery::off ? 5 : 1;
    Tensor by_starts(DType::f64, {2, rows, 4}), by_mask(DType::f64, {2, rows, 4});
    layer.forward({.query = x}, by_starts, {.mask = {.key_starts = starts}});
    layer.forward({.query = x}, by_mask, {.mask = {.attend_keys = attend_keys}});
    EXPECT_TRUE(same_bits(by_starts, by_mask));
  }
}

// A key whose attention weight is 0 is not masked, so NaN in such a key must reach the gradients: 0 x NaN is NaN.
TEST(MultiHeadAttentionMasks, NonFiniteInputsOfAttendedKeysReachTheParameters) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .seed = 3});
  const Tensor query = Random(1).tensor(DType::f32, {1, 3, 4}), lengths = Tensor::of<std::int64_t>({1}, {2});
  Tensor value = Random(2).tensor(DType::f32, query.shape()), out(DType::f32, query.shape()), bias(DType::f32, {3, 3});
  fill(value.view().select(1, 2), std::nan(""));
  fill(bias.view().select(1, 2), -HUGE_VAL);
  const auto gradient = [&](const AttentionOptions& options) {
    MultiHeadAttention::Saved saved;
    layer.forward({.query = query, .key = query, .value = value}, out, options, &saved);
    MultiHeadAttention grads = zeros_like(layer);
    layer.backward(saved, query, {.parameters = &grads});
    return test::to_doubles(grads.v.weight)[0];
  };
  EXPECT_TRUE(std::isnan(gradient({.bias = bias})));
  EXPECT_TRUE(std::isfinite(gradient({.mask = {.key_lengths = lengths}})));
}

// With packed documents, the output and the input gradient have the same bits as for each document alone, also if the batch is cut into chunks.
TEST(MultiHeadAttentionMasks, DocumentsAreIndependent) {
  const MultiHeadAttention layer({.query_width = 64, .heads = 4, .gate = Gate::sigmoid, .seed = 2});
  const Tensor x = Random(1).tensor(DType::f32, {30, 40, 64}), d_out = Random(2).tensor(DType::f32, {30, 40, 64});
  const Tensor offsets = Tensor::of<std::int64_t>({4}, {0, 7, 7, 40});
  const auto pass = [&](ConstTensorView query, ConstTensorView d, const Mask& mask, TensorView out, TensorView d_query) {
    MultiHeadAttention::Saved saved;
    layer.forward({.query = query}, out, {.mask = mask}, &saved);
    layer.backward(saved, d, {.query = d_query});
  };
  Tensor out(DType::f32, x.shape()), d_x(DType::f32, x.shape()), alone(DType::f32, x.shape()), d_alone(DType::f32, x.shape()), evaluated(DType::f32, x.shape());
  const Mask packed{.causal = Causal::bottom_right(), .query_offsets = offsets};
  pass(x, d_out, packed, out, d_x);
  for (const auto& [first, last] : {std::pair{0, 7}, std::pair{7, 40}}) {
    const auto document = [&, &f = first, &l = last](auto&& view) { return view.slice(1, f, l); };
    pass(document(x.view()), document(d_out.view()), {.causal = Causal::bottom_right()}, document(alone.view()), document(d_alone.view()));
  }
  EXPECT_TRUE(same_bits(out, alone));
  EXPECT_TRUE(same_bits(d_x, d_alone));
  LimitedThreads one(1);  // with one thread the batch is cut into several chunks
  layer.forward({.query = x}, evaluated, {.mask = packed, .executor = &one});
  EXPECT_TRUE(same_bits(evaluated, out));

  const auto refused = [&](const MultiHeadAttentionConfig& config, const AttentionOptions& options) {
    const MultiHeadAttention other = drawn(config);
    Tensor target(DType::f32, other.output_shape({.query = x}));
    return error_message([&] { other.forward({.query = x}, target, options); });
  };
  const AttentionOptions documents{.mask = {.query_offsets = offsets}};
  EXPECT_EQ(refused({.query_width = 64, .add_zero_attn = true}, documents),
            "MultiHeadAttention.forward: documents (query_offsets) cannot be combined with add_bias_kv or add_zero_attn, whose keys belong to no document");
  EXPECT_EQ(refused({.query_width = 64, .global_query = GlobalQuery::mean}, documents),
            "MultiHeadAttention.forward: documents (query_offsets) cannot be combined with a global query, which spans all documents");
  const Tensor slopes = alibi_slopes(1);
  EXPECT_EQ(refused({.query_width = 64, .add_bias_kv = true}, {.relative_bias = {.slopes = slopes}}),
            "MultiHeadAttention.forward: relative_bias cannot be combined with add_bias_kv or add_zero_attn, whose keys have no position");
  EXPECT_EQ(refused({.query_width = 64, .global_query = GlobalQuery::mean}, {.relative_bias = {.slopes = slopes}}),
            "MultiHeadAttention.forward: relative_bias cannot be combined with a global query, which has no position");
}

// One of the documents has no keys, but so many queries that several threads compute it.
TEST(MultiHeadAttentionMasks, QueriesOfADocumentWithoutKeysGetTheBiasOfTheOutput) {
  constexpr std::int64_t kEmpty = 1016, kQueries = 1024;
  MultiHeadAttention layer({.query_width = 64, .heads = 8, .head_width = 64, .seed = 2});
  const Tensor query = Random(1).tensor(DType::f32, {1, kQueries, 64}), key = Random(2).tensor(DType::f32, {1, 8, 64}), d_out = Random(3).tensor(DType::f32, query.shape());
  layer.output.bias = Random(4).tensor(DType::f32, {64});
  const Tensor query_offsets = Tensor::of<std::int64_t>({3}, {0, kEmpty, kQueries}), key_offsets = Tensor::of<std::int64_t>({3}, {0, 0, 8});
  const Mask mask{.query_offsets = query_offsets, .key_offsets = key_offsets};
  Tensor first_out, first_d_query;
  for (const int threads : {1, 2, 8, 64}) {
    SCOPED_TRACE(threads);
    test::LastPieceFirst executor(threads);
    const AttentionOptions options{.mask = mask, .executor = &executor};
    Tensor out(DType::f32, query.shape()), evaluated(DType::f32, query.shape()), d_query(DType::f32, query.shape()), d_key(DType::f32, key.shape());
    MultiHeadAttention::Saved saved;
    MultiHeadAttention gradients = zeros_like(layer);
    layer.forward({.query = query, .key = key}, evaluated, options);
    layer.forward({.query = query, .key = key}, out, options, &saved);
    layer.backward(saved, d_out, {.query = d_query, .key = d_key, .parameters = &gradients}, {.executor = &executor});
    Tensor map(DType::f32, layer.maps_shape({.query = query, .key = key}));
    attention_map(saved.maps(), map, saved.sdpa);
    EXPECT_TRUE(same_bits(evaluated, out));
    EXPECT_TRUE(same_bits(out.view().slice(1, 0, kEmpty), layer.output.bias.view().expand({1, kEmpty, 64})));
    EXPECT_EQ(test::largest_magnitude(d_query.view().slice(1, 0, kEmpty)), 0);
    EXPECT_GT(test::largest_magnitude(d_query.view().slice(1, kEmpty, kQueries)), 0);
    EXPECT_EQ(test::largest_magnitude(map.view().slice(2, 0, kEmpty)), 0);
    if (threads == 1) first_out = out, first_d_query = d_query;
    EXPECT_TRUE(same_bits(out, first_out));
    EXPECT_TRUE(same_bits(d_query, first_d_query));
  }
}

// With added keys, the layer extends the mask to them. Key and value are separate inputs in this test.
TEST(MultiHeadAttentionMasks, NonFiniteInputsThatAreMaskedReachNoGradientBesideAddedKeys) {
  const Tensor lengths = Tensor::of<std::int64_t>({2, 3}, {1, 3, 2, 0, 2, 1});
  const Setting setting{"masked", {.query_width = 4, .heads = 2, .add_bias_kv = true, .dtype = DType::f64}, {2, 3, 4}, {2, 5, 4}, {2, 5, 4}};
  Trial clean(setting), poisoned(setting);
  clean.options.mask.key_lengths = poisoned.options.mask.key_lengths = lengths;
  for (Tensor* input : {&poisoned.key, &poisoned.value}) {
    fill(input->view().select(0, 0).slice(0, 3, 5), test::kNaN);
    fill(input->view().select(0, 1).slice(0, 2, 5), test::kNaN);
  }
  clean.backward(), poisoned.backward();
  const auto expected = clean.leaves(), found = poisoned.leaves();
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same_bits(found[i].gradient, expected[i].gradient)) << found[i].name;
}

TEST(MultiHeadAttentionMasks, MaskedMeanWithoutPositionsIsZeroAndItsSequenceEmpty) {
  const Tensor nobody(DType::boolean, {1, 3});
  Trial run({"nobody", {.query_width = 4, .heads = 2, .output = OutputProjection::none, .global_query = GlobalQuery::masked_mean, .dtype = DType::f64}, {1, 3, 4}});
  run.options.mask.attend_keys = nobody;
  run.backward();
  EXPECT_EQ(test::largest_magnitude(run.saved.query_mean), 0);
  EXPECT_EQ(test::largest_magnitude(run.out), 0);
  EXPECT_EQ(test::largest_magnitude(run.d_query), 0);
}

}  // namespace
}  // namespace polyhead::nn
