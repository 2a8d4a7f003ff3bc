// Tests the norms of each head's q and k (MultiHeadAttentionConfig::qk_norm).
#include <cmath>

#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/nn/rotary_embedding.h"
#include "polyhead/nn/stack_cache.h"
#include "polyhead/nn/trace.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using test::same_bits;

MultiHeadAttentionConfig tiny() {
  return {.query_width = 6, .heads = 4, .kv_heads = 2, .head_width = 2, .qk_norm = true, .dtype = DType::f64, .seed = 1};
}

MultiHeadAttention scrambled(const MultiHeadAttentionConfig& config, Random& random) {
  MultiHeadAttention layer(config);
  layer.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -1, 1); });
  layer.q_norm.epsilon = layer.k_norm.epsilon = 1e-3;
  return layer;
}

// Divides each row of heads [*,H] by its root mean square and multiplies it by the weight.
void norm_heads(TensorView heads, const Tensor& weight, double epsilon) {
  const std::int64_t width = heads.extent(-1);
  const Tensor rows = Tensor::copy_of(heads);
  Tensor out = Tensor::copy_of(heads);
  for (std::int64_t r = 0; r < rows.numel() / width; ++r) {
    const double* x = rows.data<double>() + r * width;
    double squares = 0;
    for (std::int64_t h = 0; h < width; ++h) squares += x[h] * x[h];
    const double deviation = std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (std::int64_t h = 0; h < width; ++h) out.data<double>()[r * width + h] = x[h] / deviation * weight.data<double>()[h];
  }
  copy(out, heads);
}

TEST(QkNorm, NormsTheHeadsAfterTheirProjectionAndBeforeTheyRotate) {
  Random random(2);
  const MultiHeadAttention layer = scrambled(tiny(), random);
  const Tensor x = random.tensor(DType::f64, {2, 5, 6});
  const RotaryTables tables = RotaryEmbedding({.width = 2}).tables(0, 5, DType::f64);
  Tensor y(DType::f64, {2, 5, 6});
  layer.forward({.query = x}, y, {.mask = {.causal = Causal::top_left()}, .rotary = tables.rotary()});

  Tensor q(DType::f64, {2, 5, 8}), k(DType::f64, {2, 5, 4}), v(DType::f64, {2, 5, 4}), merged(DType::f64, {2, 5, 8}), expected(DType::f64, {2, 5, 6});
  layer.q.forward(x, q), layer.k.forward(x, k), layer.v.forward(x, v);
  const auto heads = [](Tensor& tensor, std::int64_t count) { return tensor.view().unflatten(-1, {count, 2}).move_axis(1, -2); };
  norm_heads(heads(q, 4), layer.q_norm.weight, 1e-3);
  norm_heads(heads(k, 2), layer.k_norm.weight, 1e-3);
  for (const TensorView& view : {heads(q, 4), heads(k, 2)}) rotate(tables.cos, tables.sin, RotaryOrder::halves, Rotation::forward, view);
  sdpa_forward({.q = heads(q, 4), .k = heads(k, 2), .v = heads(v, 2), .out = heads(merged, 4)}, {.mask = {.causal = Causal::top_left()}});
  layer.output.forward(merged, expected);
  EXPECT_TRUE(test::near(y, expected, 1e-13));
}

TEST(QkNorm, GradientsAgreeWithCentralDifferences) {
  for (const bool extras : {false, true}) {
    SCOPED_TRACE(extras ? "cross-attention with added keys" : "self-attention with rotary positions");
    Random random(3);
    MultiHeadAttentionConfig config = tiny();
    config.add_bias_kv = config.add_zero_attn = extras;
    config.gate = extras ? Gate::sigmoid : Gate::none;
    MultiHeadAttention layer = scrambled(config, random);
    layer.q_norm.weight_offset = extras ? 1 : 0;
    Tensor x = random.tensor(DType::f64, {2, 3, 6}), memory = random.tensor(DType::f64, {2, 4, 6}), d_y = random.tensor(DType::f64, {2, 3, 6});
    Tensor y(DType::f64, x.shape()), d_x(DType::f64, x.shape()), d_memory(DType::f64, memory.shape());
    const RotaryTables tables = RotaryEmbedding({.width = 2}).tables(0, 3, DType::f64);
    const Tensor attend_keys = Tensor::of<bool>({1, 4}, {true, false, true, true});
    const AttentionInput input{.query = x, .key = extras ? memory.view() : TensorView()};
    const AttentionOptions options{.mask = {.attend_keys = extras ? attend_keys.view() : ConstTensorView()}, .rotary = extras ? Rotary() : tables.rotary()};
    MultiHeadAttention::Saved saved;
    layer.forward(input, y, options, &saved);
    MultiHeadAttention grads = zeros_like(layer);
    layer.backward(saved, d_y, {.query = d_x, .key = extras ? d_memory.view() : TensorView(), .parameters = &grads});
    auto leaves = test::parameter_leaves(layer, grads);
    EXPECT_EQ(leaves.size(), extras ? 14 : 10);
    leaves.push_back({"query", x, d_x});
    if (extras) leaves.push_back({"key", memory, d_memory});
    test::expect_gradients([&] { return layer.forward(input, y, options), test::weighted_sum(y, d_y); }, leaves);
  }
}

TEST(QkNorm, AMaskedKeyDoesNotExistEvenIfItIsNaN) {
  Random random(4);
  const MultiHeadAttention layer = scrambled(tiny(), random);
  const Tensor x = random.tensor(DType::f64, {1, 3, 6}), d_y = random.tensor(DType::f64, {1, 3, 6}), attend_keys = Tensor::of<bool>({1, 3}, {true, true, false});
  Tensor memory = random.tensor(DType::f64, {1, 3, 6}), y(DType::f64, {1, 3, 6}), d_x(DType::f64, {1, 3, 6}), d_memory(DType::f64, {1, 3, 6});
  const auto gradients = [&] {
    MultiHeadAttention::Saved saved;
    layer.forward({.query = x, .key = memory}, y, {.mask = {.attend_keys = attend_keys}}, &saved);
    MultiHeadAttention grads = zeros_like(layer);
    layer.backward(saved, d_y, {.query = d_x, .key = d_memory, .parameters = &grads});
    return grads;
  };
  const MultiHeadAttention with_numbers = gradients();
  fill(memory.view().select(1, 2), std::nan(""));
  const MultiHeadAttention with_nan = gradients();
  EXPECT_TRUE(same_bits(with_nan.k_norm.weight, with_numbers.k_norm.weight));
  EXPECT_TRUE(same_bits(with_nan.k.weight, with_numbers.k.weight));
  for (const double value : test::to_doubles(d_memory)) EXPECT_TRUE(std::isfinite(value));
}

TEST(QkNorm, ACacheHoldsNormedKeys) {
  Random random(5);
  const MultiHeadAttention layer = scrambled(tiny(), random);
  const Tensor x = random.tensor(DType::f64, {2, 5, 6});
  Tensor whole(DType::f64, x.shape()), steps(DType::f64, x.shape());
  const AttentionOptions causal{.mask = {.causal = Causal::top_left()}};
  layer.forward({.query = x}, whole, causal);
  KeyValueCache cache({.sequences = 2, .kv_heads = 2, .capacity = 5, .head_width = 2, .dtype = DType::f64});
  for (std::int64_t t = 0; t < 5; t += 2) {
    AttentionOptions own = causal;
    own.cache = &cache;
    layer.forward({.query = x.view().slice(1, t, std::min<std::int64_t>(t + 2, 5))}, steps.view().slice(1, t, std::min<std::int64_t>(t + 2, 5)), own);
  }
  EXPECT_TRUE(test::near(steps, whole, 1e-14));
}

TEST(QkNorm, ADecodersCacheHoldsTheNormedKeysOfTheMemory) {
  Random random(6);
  Decoder decoder({.width = 6, .memory_width = 4, .heads = 2, .kv_heads = 1, .head_width = 4, .hidden_width = 5, .bias = false, .qk_norm = true, .norm_position = NormPosition::both, .dtype = DType::f64, .seed = 1}, 2);
  decoder.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -1, 1); });
  const Tensor x = random.tensor(DType::f64, {2, 4, 6}), memory = random.tensor(DType::f64, {2, 3, 4});
  Tensor whole(DType::f64, x.shape()), steps(DType::f64, x.shape());
  decoder.forward(x, memory, whole);
  DecoderCache cache(decoder, memory, {.capacity = 4});
  for (std::int64_t t = 0; t < 4; ++t) decoder.forward(x.view().slice(1, t, t + 1), steps.view().slice(1, t, t + 1), cache);
  EXPECT_TRUE(test::near(steps, whole, 1e-13));
}

TEST(QkNorm, TraceShowsTheNormsBetweenProjectionAndRotation) {
  Random random(7);
  const MultiHeadAttention layer = scrambled(tiny(), random);
  const Tensor x = random.tensor(DType::f64, {3, 6});
  const RotaryTables tables = RotaryEmbedding({.width = 2}).tables(0, 3, DType::f64);
  const std::vector<TraceStep> steps = trace(layer, {.query = x}, {.rotary = tables.rotary()});
  std::vector<TraceKind> kinds;
  for (const TraceStep& step : steps) kinds.push_back(step.kind);
  const std::vector<TraceKind> expected{TraceKind::query, TraceKind::projection_q, TraceKind::projection_k, TraceKind::projection_v, TraceKind::norm_q, TraceKind::norm_k, TraceKind::rotary_q};
  ASSERT_GE(kinds.size(), expected.size());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), kinds.begin()));
  Tensor projected(DType::f64, {3, 8}), out(DType::f64, {3, 6});
  layer.q.forward(x, projected);
  EXPECT_TRUE(same_bits(steps[1].value, projected));
  norm_heads(projected.view().unflatten(-1, {4, 2}), layer.q_norm.weight, 1e-3);
  EXPECT_TRUE(test::near(steps[4].value, projected, 1e-14));
  layer.forward({.query = x}, out, {.rotary = tables.rotary()});
  EXPECT_TRUE(same_bits(steps.back().value, out));
}

TEST(QkNorm, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  Random random(8);
  MultiHeadAttention layer = scrambled(tiny(), random);
  const auto make = [&](RMSNorm q_norm, RMSNorm k_norm) {
    return error_message([&] {
      make_attention(tiny(), {layer.q.weight, layer.q.bias}, {layer.k.weight, layer.k.bias}, {layer.v.weight, layer.v.bias}, {layer.output.weight, layer.output.bias}, {}, {}, {}, {},
                     std::move(q_norm), std::move(k_norm));
    });
  };
  EXPECT_EQ(make(layer.q_norm, {}), "MultiHeadAttention: q_norm and k_norm are configured but not both given");
  EXPECT_EQ(make(RMSNorm({.width = 3, .dtype = DType::f64}), layer.k_norm), "MultiHeadAttention.q_norm: weight is [3]; it must be [2]");
  MultiHeadAttentionConfig plain = tiny();
  plain.qk_norm = false;
  const MultiHeadAttention other(plain);
  const Tensor x = random.tensor(DType::f64, {3, 6});
  Tensor y(DType::f64, {3, 6});
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, y, {}, &saved);
  EXPECT_EQ(error_message([&] { other.backward(saved, y, {}); }), "MultiHeadAttention.backward: saved comes from a layer with norms of q and k: yes; this layer: no");
}

}  // namespace
}  // namespace polyhead::nn
