// Tests the sink logits of an attention layer.
#include <gmock/gmock.h>

#include "nn/attention_test_trial.h"

namespace polyhead::nn {
namespace {

using test::error_message;

std::vector<Setting> settings_with_sinks() {
  const auto with = [](MultiHeadAttentionConfig c) { c.dtype = DType::f64, c.seed = 1; return c; };
  return {
      {"sink of each head", with({.query_width = 4, .heads = 2, .gate = Gate::sigmoid}), {2, 3, 4}, {}, {}, {}, {}, Mode::evaluation, {2}},
      {"sink, causal, dropout, learned key", with({.query_width = 4, .heads = 2, .add_bias_kv = true, .dropout = 0.4}), {2, 3, 4}, {}, {}, {},
       [](Random&) { return Mask{.causal = Causal::top_left()}; }, Mode::training, {2, 2, 1}},
      {"sink of each query, bias, empty rows", with({.query_width = 4, .heads = 4, .kv_heads = 2}), {2, 3, 4}, {}, {}, {3, 3},
       [](Random&) { return Mask{.key_lengths = keep(Tensor::of<std::int64_t>({2}, {0, 2}))}; }, Mode::evaluation, {2, 4, 3}},
      {"sink, global", with({.query_width = 4, .heads = 2, .global_query = GlobalQuery::mean}), {2, 3, 4}, {}, {}, {}, {}, Mode::evaluation, {2}},
      {"learned, causal, grouped heads", with({.query_width = 4, .heads = 4, .kv_heads = 2, .gate = Gate::sigmoid, .sink = true}), {2, 3, 4}, {2, 5, 4}, {}, {3, 5},
       [](Random&) { return Mask{.causal = Causal::bottom_right()}; }},
      {"learned, dropout, added keys", with({.query_width = 4, .heads = 2, .add_bias_kv = true, .add_zero_attn = true, .sink = true, .dropout = 0.4}), {2, 3, 4},
       {}, {}, {}, {}, Mode::training},
  };
}

TEST(MultiHeadAttentionSinks, GradientsAreCentralDifferences) {
  for (const Setting& setting : settings_with_sinks()) {
    SCOPED_TRACE(setting.name);
    Trial run(setting);
    expect_central_differences(run);
  }
}

TEST(MultiHeadAttentionSinks, MapsHaveTheShapeOfMapsShapeAndRowsSumToOneMinusTheSinksWeight) {
  for (const Setting& setting : settings_with_sinks()) {
    SCOPED_TRACE(setting.name);
    // with a mask and no sink, rows may be empty, and the attention weights of an empty row do not sum to 1
    if (setting.mask && !setting.config.sink) continue;
    Trial run(setting);
    expect_maps_of_whole_rows(run);
  }
}

// Sink logits that are a parameter of the layer give the same results as sink logits in the options of a call. Tested with and without saved activations, in
// chunks of sequences, and with a cache.
TEST(MultiHeadAttentionSinks, ALearnedSinkGivesTheResultsOfASinkInTheOptions) {
  Random random(1);
  MultiHeadAttention plain({.query_width = 64, .heads = 4, .seed = 3}), learning({.query_width = 64, .heads = 4, .sink = true, .seed = 3});
  const Tensor sink = random.tensor(DType::f32, {4}, -2, 2), x = random.tensor(DType::f32, {64, 20, 64}), d_out = random.tensor(DType::f32, x.shape());
  EXPECT_EQ(test::largest_magnitude(learning.sink), 0);
  copy(sink, learning.sink);
  Tensor expected(DType::f32, x.shape()), out(DType::f32, x.shape()), other(DType::f32, x.shape()), d_sink(DType::f32, {4});
  MultiHeadAttention::Saved saved, of_learned;
  plain.forward({.query = x}, expected, {.sink = sink}, &saved);
  learning.forward({.query = x}, out, {}, &of_learned);
  learning.forward({.query = x}, other);
  EXPECT_TRUE(test::same_bits(out, expected));
  EXPECT_TRUE(test::same_bits(other, expected));
  plain.forward({.query = x}, other);
  EXPECT_FALSE(test::same_bits(other, expected));

  MultiHeadAttention d_plain = zeros_like(plain), d_learned = zeros_like(learning);
  plain.backward(saved, d_out, {.sink = d_sink, .parameters = &d_plain});
  learning.backward(of_learned, d_out, {.parameters = &d_learned});
  EXPECT_TRUE(test::same_bits(d_learned.sink, d_sink));
  EXPECT_TRUE(test::same_bits(d_learned.q.weight, d_plain.q.weight));
  std::vector<std::string> names;
  learning.visit([&](const std::string& name, const Tensor&) { names.push_back(name); });
  EXPECT_THAT(names, testing::Contains("sink"));

  KeyValueCache cache({.sequences = 64, .kv_heads = 4, .capacity = 20, .head_width = 16});
  learning.forward({.query = x}, other, {.mask = {.causal = Causal::top_left()}, .cache = &cache});
  plain.forward({.query = x}, expected, {.mask = {.causal = Causal::top_left()}, .sink = sink});
  EXPECT_TRUE(test::near(other, expected, 1e-6));
}

TEST(MultiHeadAttentionSinks, ASinkInTheOptionsIsRefusedBesideALearnedSink) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .sink = true, .seed = 1});
  Tensor x(DType::f32, {2, 3, 4}), out(DType::f32, x.shape()), sink(DType::f32, {2});
  EXPECT_EQ(error_message([&] { layer.forward({.query = x}, out, {.sink = sink}); }),
            "MultiHeadAttention.forward: sink is given to a layer that learns its own (config.sink)");
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {}, &saved);
  EXPECT_THAT(error_message([&] { layer.backward(saved, out, {.sink = sink}); }), testing::HasSubstr("sink is requested, but forward() was called without this input"));
  EXPECT_THAT(error_message([&] { MultiHeadAttention({.query_width = 4, .sink = true, .empty_rows = EmptyRows::uniform, .seed = 1}); }), testing::HasSubstr("sink cannot be combined with empty_rows uniform"));
  const auto linear = [] { return Linear(Tensor(DType::f32, {4, 4}), Tensor(DType::f32, {4})); };
  const auto made = [&](Tensor given) {
    return error_message([&] { make_attention({.query_width = 4, .heads = 2, .sink = true}, linear(), linear(), linear(), linear(), {}, {}, {}, std::move(given)); });
  };
  EXPECT_EQ(made(Tensor(DType::f32, {2})), "");
  EXPECT_THAT(made({}), testing::HasSubstr("sink logits are configured but not given"));
  EXPECT_THAT(made(Tensor(DType::f32, {3})), testing::HasSubstr("sink is [3]"));
}

TEST(MultiHeadAttentionSinks, SinksAreCheckedAndTheirGradientsHaveTheirShapeAndDType) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .dtype = DType::bf16, .seed = 1});
  Tensor x(DType::bf16, {2, 3, 4}), out(DType::bf16, x.shape()), sink(DType::f32, {2}), wrong(DType::f32, {3}), narrow(DType::bf16, {2});
  EXPECT_THAT(error_message([&] { layer.forward({.query = x}, out, {.sink = wrong}); }), testing::HasSubstr("sink is [3]"));
  EXPECT_THAT(error_message([&] { layer.forward({.query = x}, out, {.sink = out.view().reshape({24}).slice(0, 0, 2)}); }),
              testing::HasSubstr("out overlaps sink"));
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {.sink = sink}, &saved);
  EXPECT_THAT(error_message([&] { layer.backward(saved, out, {.sink = narrow}); }), testing::HasSubstr("the gradient of sink is bfloat16; it must be float32"));
  const MultiHeadAttention uniform({.query_width = 4, .heads = 2, .empty_rows = EmptyRows::uniform, .dtype = DType::bf16, .seed = 1});
  EXPECT_THAT(error_message([&] { uniform.forward({.query = x}, out, {.sink = sink}); }), testing::HasSubstr("sink cannot be combined with empty_rows uniform"));
}

}  // namespace
}  // namespace polyhead::nn
