#include <gmock/gmock.h>

#include "nn/attention_test_trial.h"
#include "nn/sequence_chunks.h"
#include "polyhead/nn/trace.h"
#include "support/attention_case.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::same_bits;

// Keys and values that an earlier pass projected, as for a cache, must give the same output as the layer's own projections, and must get gradients.
TEST(ProjectedKeys, AreTheKeysThatTheLayerWouldProject) {
  for (const bool added : {false, true}) {
    Trial run({"projected",
               {.query_width = 4, .heads = 4, .kv_heads = 2, .value_head_width = 3, .add_bias_kv = added, .dtype = DType::f64},
               {2, 3, 4},
               {2, 5, 4}});
    const auto [cos, sin] = rotary_tables({7, 8, 9}, 4);
    const auto [key_cos, key_sin] = rotary_tables({0, 1, 2, 3, 4}, 4);
    run.layer = MultiHeadAttention(
        {.query_width = 4, .heads = 4, .kv_heads = 2, .head_width = 4, .value_head_width = 3, .add_bias_kv = added, .dtype = DType::f64, .seed = 1});
    run.layer.visit([&](const std::string&, Tensor& tensor) { tensor = run.random.tensor(DType::f64, tensor.shape()); });
    run.gradients = zeros_like(run.layer);
    run.options.rotary = {.cos = cos, .sin = sin, .key_cos = key_cos, .key_sin = key_sin};
    run.backward();
    Tensor keys = Tensor::copy_of(run.saved.k_heads.slice(-2, 0, 5)), values = Tensor::copy_of(run.saved.v_heads.slice(-2, 0, 5));
    const Tensor expected = run.out, d_query = run.d_query;
    run.input = {.query = run.query, .projected_key = keys, .projected_value = values};
    EXPECT_EQ(run.layer.maps_shape(run.input), (Shape{2, 4, 3, added ? 6 : 5}));
    run.options.rotary = {.cos = cos, .sin = sin};
    run.loss();
    EXPECT_TRUE(same_bits(run.out, expected));
    Tensor d_keys(DType::f64, keys.shape()), d_values(DType::f64, values.shape()), d_q(DType::f64, run.query.shape());
    fill(run.gradients.k.weight, 7);
    run.layer.backward(run.saved, run.d_out,
                       {.query = d_q, .projected_key = d_keys, .projected_value = d_values, .parameters = &run.gradients});
    EXPECT_TRUE(same_bits(d_q, d_query));
    EXPECT_EQ(test::largest_magnitude(run.gradients.k.weight), 0);
    std::vector<test::Leaf> leaves = test::parameter_leaves(run.layer, run.gradients);
    leaves.push_back({"keys", keys, d_keys});
    leaves.push_back({"values", values, d_values});
    test::expect_gradients([&] { return run.loss(); }, leaves);
  }
}

TEST(ProjectedKeys, MessagesOfWrongShapesGiveTheShapes) {
  const MultiHeadAttention layer({.query_width = 8, .heads = 2, .seed = 1});
  const Tensor x(DType::f32, {2, 3, 8}), keys(DType::f32, {2, 2, 5, 4}), short_values(DType::f32, {2, 2, 4, 4});
  Tensor out(DType::f32, x.shape());
  const auto message = [&](const AttentionInput& input) { return error_message([&] { layer.forward(input, out); }); };
  EXPECT_EQ(message({.query = x, .projected_key = keys}),
            "MultiHeadAttention.forward: projected_key and projected_value must be given together");
  EXPECT_EQ(message({.query = x, .key = x, .projected_key = keys, .projected_value = keys}),
            "MultiHeadAttention.forward: both key and projected_key are given; only one of them may be");
  EXPECT_EQ(message({.query = x, .projected_key = keys, .projected_value = short_values}),
            "MultiHeadAttention.forward: projected_value is [2,2,4,4]; it must be [2,2,5,4]");
  EXPECT_EQ(message({.query = x, .projected_key = keys, .projected_value = keys}), "");
}

// Keys and values in the dtype of a cache must give the same bits as the same values in the layer's dtype, in one pass and in chunks of sequences.
TEST(ProjectedKeys, InTheDtypeOfACacheGiveTheSameBits) {
  const MultiHeadAttention layer({.query_width = 64, .heads = 4, .kv_heads = 2, .seed = 1});
  for (const DType storage : {DType::i8, DType::bf16, DType::f16}) {
    test::Random random(2);
    const bool integers = storage == DType::i8;
    const Shape shape{40, 2, 30, 16};
    const double magnitude = integers ? 127 : 1;
    const Tensor query = random.tensor(DType::f32, {40, 40, 64}), keys = random.tensor(storage, shape, -magnitude, magnitude),
                 values = random.tensor(storage, shape, -magnitude, magnitude);
    const Tensor key_scale = integers ? random.tensor(DType::f32, {40, 2, 30}, 0, 0.02) : Tensor(),
                 value_scale = integers ? random.tensor(DType::f32, {40, 2, 30}, 0, 0.02) : Tensor();
    const Tensor wide_keys = Tensor::copy_of(test::values_of(keys, key_scale), DType::f32),
                 wide_values = Tensor::copy_of(test::values_of(values, value_scale), DType::f32);
    const AttentionInput stored{.query = query,
                                .projected_key = keys,
                                .projected_value = values,
                                .projected_key_scale = key_scale,
                                .projected_value_scale = value_scale};
    Tensor expected(DType::f32, query.shape()), out(DType::f32, query.shape()), whole(DType::f32, query.shape());
    layer.forward({.query = query, .projected_key = wide_keys, .projected_value = wide_values}, expected);
    LimitedThreads one(1);
    EXPECT_GT(SequenceChunks(layer.config, attention_shapes("test", layer.config, stored), {.executor = &one}).count(), 1);
    layer.forward(stored, out, {.executor = &one});
    EXPECT_TRUE(same_bits(out, expected));
    MultiHeadAttention::Saved saved;
    layer.forward(stored, whole, {}, &saved);
    EXPECT_TRUE(same_bits(whole, expected));
    EXPECT_EQ(error_message([&] { layer.backward(saved, whole, {}); }),
              "MultiHeadAttention.backward: projected_key is " + std::string(info(storage).name) +
                  "; gradients need keys and values in the dtype of the parameters, float32");
    const std::string of_trace = error_message([&] { trace(layer, stored); });
    EXPECT_EQ(of_trace, integers ? "trace: projected_key is int8; the steps show floating-point numbers, so dequantize projected_key and projected_value first" : "");
  }
}

TEST(ProjectedKeys, ADtypeThatDoesNotFitIsRefused) {
  const MultiHeadAttention layer({.query_width = 8, .heads = 2, .seed = 1}), added({.query_width = 8, .heads = 2, .add_zero_attn = true, .seed = 1});
  const Tensor x(DType::f32, {2, 3, 8}), wide(DType::f64, {2, 2, 5, 4}), half(DType::f16, {2, 2, 5, 4}), i8(DType::i8, {2, 2, 5, 4}),
      scale(DType::f32, {2, 2, 5});
  Tensor out(DType::f32, x.shape());
  const auto message = [&](const MultiHeadAttention& of, const AttentionInput& input) {
    return error_message([&] { of.forward(input, out); });
  };
  const AttentionInput stored{
      .query = x, .projected_key = i8, .projected_value = i8, .projected_key_scale = scale, .projected_value_scale = scale};
  EXPECT_EQ(message(layer, stored), "");
  EXPECT_THAT(message(layer, {.query = x, .projected_key = wide, .projected_value = wide}),
              testing::HasSubstr("projected_key is float64 and the parameters are float32"));
  EXPECT_THAT(message(layer, {.query = x, .projected_key = half, .projected_value = i8}), testing::HasSubstr("projected_value is int8"));
  EXPECT_THAT(message(layer, {.query = x, .projected_key = i8, .projected_value = i8}),
              testing::HasSubstr("projected_key_scale is missing"));
  EXPECT_THAT(message(layer, {.query = x, .projected_key_scale = scale}), testing::HasSubstr("projected_key_scale is given without int8"));
  EXPECT_THAT(message(added, stored), testing::HasSubstr("projected_key is int8 and cannot be combined with add_bias_kv or add_zero_attn"));
}

// Gradients that are not requested must need no memory, and the requested gradients must keep their bits.
TEST(ProjectedKeys, GradientsThatAreNotRequestedAreNotComputed) {
  const MultiHeadAttention layer({.query_width = 64, .heads = 4, .seed = 1});
  Random random(2);
  constexpr std::int64_t kKeys = 4096, kBytes = kKeys * 64 * 4;  // bytes of d_k
  const Tensor query = random.tensor(DType::f32, {1, 1, 64}), keys = random.tensor(DType::f32, {1, 4, kKeys, 16}),
               values = random.tensor(DType::f32, keys.shape());
  Tensor out(DType::f32, query.shape()), d_query(DType::f32, query.shape()), d_keys(DType::f32, keys.shape()),
      d_values(DType::f32, keys.shape()), alone(DType::f32, query.shape());
  const Tensor d_out = random.tensor(DType::f32, out.shape());
  MultiHeadAttention::Saved saved;
  layer.forward({.query = query, .projected_key = keys, .projected_value = values}, out, {}, &saved);
  layer.backward(saved, d_out, {.query = d_query, .projected_key = d_keys, .projected_value = d_values});
  const Workspace workspace;
  LimitedThreads one(1);
  layer.backward(saved, d_out, {.query = alone}, {&one, &workspace});
  EXPECT_LT(workspace.idle_bytes(), kBytes);
  EXPECT_TRUE(same_bits(alone, d_query));

  MultiHeadAttention grads = zeros_like(layer), same = zeros_like(layer);
  Tensor only_keys(DType::f32, keys.shape()), only_values(DType::f32, keys.shape());
  layer.backward(saved, d_out, {.query = alone, .projected_key = d_keys, .projected_value = d_values, .parameters = &grads});
  layer.backward(saved, d_out, {.parameters = &same});
  EXPECT_TRUE(same_bits(same.q.weight, grads.q.weight));
  layer.backward(saved, d_out, {.projected_key = only_keys});
  layer.backward(saved, d_out, {.projected_value = only_values});
  EXPECT_TRUE(same_bits(only_keys, d_keys));
  EXPECT_TRUE(same_bits(only_values, d_values));
}

}  // namespace
}  // namespace polyhead::nn
