#include "nn/attention_test_trial.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::same_bits;

// A cache: keys and values of earlier positions, projected by an earlier pass, and their gradients.
TEST(ProjectedKeys, AreTheKeysThatTheLayerWouldProject) {
  for (const bool added : {false, true}) {
    Trial run({"projected",
               {.query_width = 4, .heads = 4, .kv_heads = 2, .value_head_width = 3, .add_bias_kv = added, .dtype = DType::f64},
               {2, 3, 4},
               {2, 5, 4}});
    const auto [cos, sin] = rotary_tables({7, 8, 9}, 4);
    const auto [key_cos, key_sin] = rotary_tables({0, 1, 2, 3, 4}, 4);
    run.layer = MultiHeadAttention(
        {.query_width = 4, .heads = 4, .kv_heads = 2, .head_width = 4, .value_head_width = 3, .add_bias_kv = added, .dtype = DType::f64});
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

TEST(ProjectedKeys, WrongOnesAreSaidInNumbers) {
  const MultiHeadAttention layer({.query_width = 8, .heads = 2});
  const Tensor x(DType::f32, {2, 3, 8}), keys(DType::f32, {2, 2, 5, 4}), short_values(DType::f32, {2, 2, 4, 4});
  Tensor out(DType::f32, x.shape());
  const auto message = [&](const AttentionInput& input) { return error_message([&] { layer.forward(input, out); }); };
  EXPECT_EQ(message({.query = x, .projected_key = keys}),
            "MultiHeadAttention.forward: projected_key and projected_value are given together");
  EXPECT_EQ(message({.query = x, .key = x, .projected_key = keys, .projected_value = keys}),
            "MultiHeadAttention.forward: both key and projected_key are given");
  EXPECT_EQ(message({.query = x, .projected_key = keys, .projected_value = short_values}),
            "MultiHeadAttention.forward: projected_value is [2,2,4,4]; it must be [2,2,5,4]");
  EXPECT_EQ(message({.query = x, .projected_key = keys, .projected_value = keys}), "");
}

// Gradients that are not asked for are not computed: they need no memory, and the others have the same bits.
TEST(ProjectedKeys, GradientsThatNobodyWantsAreNotComputed) {
  const MultiHeadAttention layer({.query_width = 64, .heads = 4, .seed = 1});
  Random random(2);
  constexpr std::int64_t kKeys = 4096, kBytes = kKeys * 64 * 4;  // of d_k
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
