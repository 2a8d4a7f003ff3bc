#include "polyhead/nn/decoder_layer.h"

#include <limits>

#include "polyhead/nn/stack_cache.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::near;
using test::Random;
using test::same_bits;

LayerConfig tiny(NormPosition position) {
  return {.width = 6, .memory_width = 4, .heads = 2, .hidden_width = 5, .norm_position = position, .epsilon = 1e-3, .dtype = DType::f64, .seed = 0};
}

template <class Layer>
void expect_central_differences_with_memory(Layer layer, std::size_t count, std::uint64_t seed) {
  Random random(seed);
  layer.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -1, 1); });
  const Shape shape{2, 3, 6};
  Tensor x = random.tensor(DType::f64, shape), memory = random.tensor(DType::f64, {2, 5, 4}), d_y = random.tensor(DType::f64, shape);
  const Tensor lengths = Tensor::of<std::int64_t>({2}, {5, 2});
  const DecoderOptions options{.attention = {.mode = Mode::training, .dropout_seed = seed}, .memory_mask = {.key_lengths = lengths}};
  Tensor y(DType::f64, shape), again(DType::f64, shape), d_x(DType::f64, shape), d_memory(DType::f64, {2, 5, 4});
  typename Layer::Saved saved;
  layer.forward(x, memory, y, options, &saved);
  layer.forward(x, memory, again, options);
  EXPECT_TRUE(same_bits(again, y));
  Layer grads = zeros_like(layer);
  layer.backward(saved, d_y, {.x = d_x, .memory = d_memory, .parameters = &grads});
  auto leaves = test::parameter_leaves(layer, grads);
  EXPECT_EQ(leaves.size(), count);
  leaves.push_back({"x", x, d_x});
  leaves.push_back({"memory", memory, d_memory});
  test::expect_gradients(
      [&] {
        layer.forward(x, memory, y, options);
        return test::weighted_sum(y, d_y);
      },
      leaves);
  // d_x must not depend on whether the gradient of the memory is requested. With Write::add the gradient of the memory is added to what its view holds.
  Tensor alone(DType::f64, shape), added = memory;
  layer.backward(saved, d_y, {.x = alone});
  EXPECT_TRUE(same_bits(alone, d_x));
  layer.backward(saved, d_y, {.x = alone, .memory = added, .memory_write = Write::add});
  for (std::int64_t i = 0; i < memory.numel(); ++i)
    EXPECT_NEAR(added.data<double>()[i], memory.data<double>()[i] + d_memory.data<double>()[i], 1e-12);
}

TEST(DecoderLayer, GradientsAreCentralDifferences) {
  for (const NormPosition position : {NormPosition::post, NormPosition::pre}) {
    for (const double dropout : {0.0, 0.3}) {
      SCOPED_TRACE((position == NormPosition::pre ? "pre, dropout " : "post, dropout ") + std::to_string(dropout));
      LayerConfig config = tiny(position);
      config.dropout = config.attention_dropout = dropout;
      expect_central_differences_with_memory(DecoderLayer(config), 26, 1);
      expect_central_differences_with_memory(Decoder(config, 2), position == NormPosition::pre ? 54 : 52, 2);
    }
  }
}

TEST(DecoderLayer, NormsOfBothSidesAndOfHeadsHaveTheGradientsOfCentralDifferences) {
  LayerConfig config = tiny(NormPosition::both);
  config.norm = NormKind::rms_norm, config.kv_heads = 1, config.head_width = 4, config.qk_norm = true, config.dropout = 0.3;
  config.bias = config.output_bias = config.feed_forward_bias = false;
  expect_central_differences_with_memory(Decoder(config, 2), 2 * (2 * 6 + 2 + 6) + 1, 3);
}

LayerConfig tiny_rms_norm_swiglu(NormPosition position) {
  LayerConfig config = tiny(position);
  config.norm = NormKind::rms_norm, config.activation = Activation::silu, config.gated = true;
  return config;
}

TEST(DecoderLayer, RMSNormAndSwiGLUHaveTheGradientsOfCentralDifferences) {
  for (const NormPosition position : {NormPosition::post, NormPosition::pre}) {
    LayerConfig config = tiny_rms_norm_swiglu(position);
    config.dropout = 0.3;
    expect_central_differences_with_memory(Decoder(config, 2), position == NormPosition::pre ? 51 : 50, 3);
  }
}

TEST(DecoderLayer, LaterTokensAndMaskedMemoryHaveNoEffect) {
  for (const NormPosition position : {NormPosition::post, NormPosition::pre}) {
    Random random(3);
    const Decoder decoder(tiny(position), 2);
    Tensor x = random.tensor(DType::f64, {1, 4, 6}), memory = random.tensor(DType::f64, {1, 3, 4});
    const Tensor attend_keys = Tensor::of<bool>({1, 3}, {true, false, true});
    const DecoderOptions options{.memory_mask = {.attend_keys = attend_keys}};
    Tensor y(DType::f64, x.shape()), changed(DType::f64, x.shape());
    decoder.forward(x, memory, y, options);
    fill(x.view().slice(1, 2, 4), 9);
    fill(memory.view().slice(1, 1, 2), std::numeric_limits<double>::quiet_NaN());
    decoder.forward(x, memory, changed, options);
    EXPECT_TRUE(same_bits(changed.view().slice(1, 0, 2), y.view().slice(1, 0, 2)));
    EXPECT_FALSE(near(changed.view().slice(1, 2, 4), y.view().slice(1, 2, 4), 1e-3));
  }
}

TEST(DecoderLayer, TokenByTokenWithACacheEqualsTheWholeSequence) {
  Random random(4);
  for (const LayerConfig& config : {tiny(NormPosition::pre), tiny_rms_norm_swiglu(NormPosition::post)}) {
    const DecoderLayer layer(config);
    const Tensor x = random.tensor(DType::f64, {2, 5, 6}), memory = random.tensor(DType::f64, {2, 3, 4});
    Tensor whole(DType::f64, x.shape()), parts(DType::f64, x.shape());
    layer.forward(x, memory, whole);
    KeyValueCache cache({.sequences = 2, .kv_heads = 2, .capacity = 5, .head_width = 3, .dtype = DType::f64});
    for (std::int64_t t = 0; t < 5; ++t)
      layer.forward(x.view().slice(1, t, t + 1), memory, parts.view().slice(1, t, t + 1), {.attention = {.cache = &cache}});
    EXPECT_TRUE(near(parts, whole, 1e-12));
  }
}

TEST(DecoderLayer, ExtentsMayBeZero) {
  const DecoderLayer layer(tiny(NormPosition::post));
  for (const auto& [batch, queries, keys] : {std::tuple{0, 3, 2}, std::tuple{2, 0, 2}, std::tuple{2, 3, 0}, std::tuple{1, 1, 1}}) {
    const Tensor x(DType::f64, {batch, queries, 6}), memory(DType::f64, {batch, keys, 4});
    Tensor y(DType::f64, x.shape()), d_x(DType::f64, x.shape()), d_memory(DType::f64, memory.shape());
    DecoderLayer::Saved saved;
    DecoderLayer grads = zeros_like(layer);
    layer.forward(x, memory, y, {}, &saved);
    layer.backward(saved, y, {.x = d_x, .memory = d_memory, .parameters = &grads});
  }
}

TEST(DecoderLayer, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  EXPECT_EQ(error_message([] { DecoderLayer({.width = 4, .norm_position = NormPosition::pre, .part_order = PartOrder::parallel, .seed = 1}); }),
            "DecoderLayer: part_order is parallel; the parts of a decoder layer are sequential");
  const DecoderLayer layer(tiny(NormPosition::post));
  const Decoder decoder(tiny(NormPosition::post), 1);
  Tensor x(DType::f64, {2, 3, 6}), memory(DType::f64, {2, 5, 4}), wide(DType::f64, {2, 5, 6}), y(DType::f64, {2, 3, 6}), d(DType::f64, {2, 3, 6});
  EXPECT_EQ(error_message([&] { layer.forward(x, {}, y); }), "DecoderLayer.forward: memory is missing");
  EXPECT_EQ(error_message([&] { layer.forward(x, memory, memory); }), "DecoderLayer.forward: y is [2,5,4]; it must be [2,3,6]");
  EXPECT_EQ(error_message([&] { layer.forward(x, x, x); }), "DecoderLayer.forward: y overlaps x; outputs need memory of their own");
  EXPECT_NE(error_message([&] { layer.forward(x, wide, y); }).find("[2,5,6]"), std::string::npos);
  DecoderLayer::Saved saved;
  EXPECT_EQ(error_message([&] { layer.backward(saved, y, {.x = d}); }), "DecoderLayer.backward: saved is empty; give it to forward first");
  layer.forward(x, memory, y, {}, &saved);
  EXPECT_EQ(error_message([&] { layer.backward(saved, y, {.x = d, .memory = wide}); }),
            "DecoderLayer.backward: d_memory is [2,5,6]; it must be [2,5,4]");
  EXPECT_EQ(error_message([&] { layer.backward(saved, y, {.x = d, .memory = memory}); }),
            "DecoderLayer.backward: d_memory overlaps memory; outputs need memory of their own");
  KeyValueCache cache({.sequences = 2, .kv_heads = 2, .capacity = 5, .head_width = 3, .dtype = DType::f64});
  EXPECT_EQ(error_message([&] { decoder.forward(x, memory, y, {.attention = {.cache = &cache}}); }),
            "Decoder.forward: the option cache is for one layer; for a stack use DecoderCache");
  for (const auto& [member, name] : {std::pair{&DecoderLayer::self_attention_output_norm, "self_attention_output_norm"}, {&DecoderLayer::cross_attention_output_norm, "cross_attention_output_norm"}, {&DecoderLayer::feed_forward_output_norm, "feed_forward_output_norm"}}) {
    Decoder normed(tiny(NormPosition::post), 1);
    normed.layers[0].*member = normed.layers[0].feed_forward_norm;
    const std::string expected = std::string("the layer has ") + name + ", but norm_position is post; only norm_position both has output norms";
    EXPECT_EQ(error_message([&] { normed.layers[0].forward(x, memory, y); }), "DecoderLayer.forward: " + expected);
    EXPECT_EQ(error_message([&] { normed.layers[0].backward(saved, y, {.x = d}); }), "DecoderLayer.backward: " + expected);
    DecoderCache tokens(normed, memory, {.capacity = 3});
    EXPECT_EQ(error_message([&] { normed.forward(x, y, tokens); }), "Decoder.forward: " + expected);
  }
}

}  // namespace
}  // namespace polyhead::nn
