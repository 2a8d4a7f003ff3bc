#include "polyhead/nn/encoder_layer.h"

#include <gmock/gmock.h>

#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using test::same_bits;

// Fills all parameters with random numbers. Norms and biases initially hold ones and zeros, which could hide a missing gradient.
template <class Module>
void scramble(Module& module, Random& random) {
  module.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, 0.2, 1.0); });
}

LayerConfig tiny(Activation activation = Activation::gelu, NormPosition position = NormPosition::post) {
  return {.width = 6, .heads = 2, .hidden_width = 5, .activation = activation, .norm_position = position, .epsilon = 1e-3, .dtype = DType::f64, .seed = 0};
}

// Compares the gradients of a layer or a stack, in training with dropout, with central differences.
template <class Layer>
void expect_central_differences(Layer layer, std::size_t count, std::uint64_t seed) {
  Random random(seed);
  layer.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -1, 1); });
  const Shape shape{2, 3, 6};
  Tensor x = random.tensor(DType::f64, shape), d_y = random.tensor(DType::f64, shape);
  const Tensor attend_keys = Tensor::of<bool>({2, 3}, {true, true, true, true, true, false});
  const AttentionOptions options{.mask = {.attend_keys = attend_keys}, .mode = Mode::training, .dropout_seed = seed};
  Tensor y(DType::f64, shape), again(DType::f64, shape), d_x(DType::f64, shape);
  typename Layer::Saved saved;
  layer.forward(x, y, options, &saved);
  layer.forward(x, again, options);
  EXPECT_TRUE(same_bits(again, y));
  Layer grads = zeros_like(layer);
  layer.backward(saved, d_y, {.x = d_x, .parameters = &grads});
  const auto loss = [&] {
    layer.forward(x, y, options);
    return test::weighted_sum(y, d_y);
  };
  auto leaves = test::parameter_leaves(layer, grads);
  EXPECT_EQ(leaves.size(), count);
  leaves.push_back({"x", x, d_x});
  test::expect_gradients(loss, leaves);
}

TEST(EncoderLayer, GradientsAgreeWithCentralDifferences) {
  for (const NormPosition position : {NormPosition::post, NormPosition::pre}) {
    for (const double dropout : {0.0, 0.3}) {
      for (const std::uint64_t seed : {1u, 2u}) {
        SCOPED_TRACE((position == NormPosition::pre ? "pre, dropout " : "post, dropout ") + std::to_string(dropout) + ", seed " + std::to_string(seed));
        LayerConfig config = tiny(seed == 1 ? Activation::gelu : Activation::gelu_tanh, position);
        config.dropout = config.attention_dropout = dropout;
        expect_central_differences(EncoderLayer(config), 16, seed);
        if (dropout > 0) expect_central_differences(Encoder(config, 2), position == NormPosition::pre ? 34 : 32, seed);
      }
    }
  }
}

TEST(EncoderLayer, RMSNormAndSwiGLUHaveTheGradientsOfCentralDifferences) {
  for (const NormPosition position : {NormPosition::post, NormPosition::pre}) {
    LayerConfig config = tiny(Activation::silu, position);
    config.norm = NormKind::rms_norm, config.gated = true, config.dropout = 0.3;
    expect_central_differences(Encoder(config, 2), position == NormPosition::pre ? 33 : 32, 3);
  }
}

// Tests configurations that are similar to the layers of Gemma 2, Qwen 3 and GPT-NeoX.
TEST(EncoderLayer, GroupedHeadsAndFewerBiasesHaveTheGradientsOfCentralDifferences) {
  LayerConfig config = tiny(Activation::silu, NormPosition::both);
  config.heads = 4, config.kv_heads = 2, config.head_width = 3, config.gated = true, config.norm = NormKind::rms_norm, config.qk_norm = true, config.dropout = 0.2;
  config.bias = config.output_bias = config.feed_forward_bias = false;
  expect_central_differences(Encoder(config, 2), 2 * (4 + 2 + 3 + 4) + 1, 4);
  config.output_bias = true;
  expect_central_differences(EncoderLayer(config), 14, 5);
}

TEST(EncoderLayer, ParallelPartsHaveTheGradientsOfCentralDifferences) {
  for (const NormPosition position : {NormPosition::pre, NormPosition::both}) {
    LayerConfig config = tiny(Activation::gelu, position);
    config.part_order = PartOrder::parallel, config.dropout = 0.2;
    expect_central_differences(Encoder(config, 2), position == NormPosition::pre ? 34 : 42, 6);
  }
}

// ModernBERT's first layer has no norm before its attention.
TEST(EncoderLayer, WithoutANormTheAttentionReadsItsInput) {
  EncoderLayer layer(tiny(Activation::gelu, NormPosition::pre));
  layer.attention_norm = Norm();
  expect_central_differences(layer, 14, 7);
  Random random(8);
  scramble(layer, random);
  const Tensor x = random.tensor(DType::f64, {4, 6});
  Tensor y(DType::f64, {4, 6}), sum(DType::f64, {4, 6}), normed(DType::f64, {4, 6}), part(DType::f64, {4, 6});
  layer.attention.forward({.query = x}, sum);
  for (std::int64_t i = 0; i < 24; ++i) sum.data<double>()[i] += x.data<double>()[i];
  layer.feed_forward_norm.forward(sum, normed);
  layer.feed_forward.forward(normed, part);
  for (std::int64_t i = 0; i < 24; ++i) sum.data<double>()[i] += part.data<double>()[i];
  layer.forward(x, y);
  EXPECT_TRUE(test::near(y, sum, 1e-12));
  for (const NormPosition position : {NormPosition::post, NormPosition::both}) {
    EncoderLayer lacks(tiny(Activation::gelu, position));
    lacks.attention_norm = Norm();
    EXPECT_EQ(error_message([&] { lacks.forward(x, y); }), "EncoderLayer.forward: attention_norm is absent; only layers with norm_position pre may lack it");
  }
}

// The backward pass of a single layer computes the gradient of a relative bias. A stack must refuse it, because all its layers share the bias.
TEST(EncoderLayer, ARelativeBiasHasTheGradientOfCentralDifferences) {
  Random random(12);
  EncoderLayer layer(tiny());
  scramble(layer, random);
  const Shape shape{2, 5, 6};
  const Tensor x = random.tensor(DType::f64, shape), d_y = random.tensor(DType::f64, shape);
  Tensor table = random.tensor(DType::f64, {2, 8}), d_table(DType::f64, {2, 8}), y(DType::f64, shape), d_x(DType::f64, shape);
  const AttentionOptions options{.relative_bias = {.table = table}};
  EncoderLayer::Saved saved;
  layer.forward(x, y, options, &saved);
  layer.backward(saved, d_y, {.x = d_x, .relative_bias = d_table});
  test::expect_gradients(
      [&] {
        layer.forward(x, y, options);
        return test::weighted_sum(y, d_y);
      },
      {{"table", table, d_table}});
  Encoder stack(tiny(), 2);
  Encoder::Saved of_stack;
  stack.forward(x, y, options, &of_stack);
  EXPECT_THAT(error_message([&] { stack.backward(of_stack, d_y, {.x = d_x, .relative_bias = d_table}); }), testing::HasSubstr("a relative bias is computed for one layer only"));
}

// The outputs must equal the formulas in encoder_layer.h, computed with the layer's norms, attention and feed-forward network.
TEST(EncoderLayer, NormsOfBothSidesAndParallelPartsComputeTheirFormulas) {
  Random random(9);
  for (const NormPosition position : {NormPosition::pre, NormPosition::both}) {
    for (const PartOrder order : {PartOrder::sequential, PartOrder::parallel}) {
      LayerConfig config = tiny(Activation::gelu, position);
      config.part_order = order;
      EncoderLayer layer(config);
      scramble(layer, random);
      const Shape shape{4, 6};
      const Tensor x = random.tensor(DType::f64, shape);
      Tensor y(DType::f64, shape), normed(DType::f64, shape), part(DType::f64, shape), output(DType::f64, shape);
      const auto add_part = [&](const Norm& norm, const Norm& output_norm, const Tensor& read, const auto& f, Tensor& sum) {
        norm.forward(read, normed);
        f(normed, part);
        if (position == NormPosition::both) output_norm.forward(part, output);
        const Tensor& added = position == NormPosition::both ? output : part;
        for (std::int64_t i = 0; i < sum.numel(); ++i) sum.data<double>()[i] += added.data<double>()[i];
      };
      Tensor sum = x;
      add_part(layer.attention_norm, layer.attention_output_norm, x, [&](const Tensor& in, Tensor& out) { layer.attention.forward({.query = in}, out); }, sum);
      const Tensor read = order == PartOrder::parallel ? x : sum;
      add_part(layer.feed_forward_norm, layer.feed_forward_output_norm, read, [&](const Tensor& in, Tensor& out) { layer.feed_forward.forward(in, out); }, sum);
      layer.forward(x, y);
      EXPECT_TRUE(test::near(y, sum, 1e-14));
    }
  }
}

TEST(EncoderLayer, EachUseOfDropoutHasItsOwnBits) {
  // All parameters are 0, except that the output bias of the attention or of the feed-forward network is 1. Each element of y is then x + 1 / (1 - p) or, where
  // dropout drops it, x.
  LayerConfig config{.width = 64, .norm_position = NormPosition::pre, .dropout = 0.5, .seed = 1};
  EncoderLayer layer(config);
  layer.visit([](const std::string&, Tensor& tensor) { fill(tensor, 0); });
  const auto run = [&](bool of_attention, std::uint64_t seed) {
    fill(layer.attention.output.bias, of_attention ? 1 : 0);
    fill(layer.feed_forward.output.bias, of_attention ? 0 : 1);
    const Tensor x(DType::f32, {8, 64});
    Tensor y(DType::f32, {8, 64});
    layer.forward(x, y, {.mode = Mode::training, .dropout_seed = seed});
    return y;
  };
  EXPECT_TRUE(same_bits(run(true, 1), run(true, 1)));
  EXPECT_FALSE(same_bits(run(true, 1), run(false, 1)));
  EXPECT_FALSE(same_bits(run(true, 1), run(true, 2)));
  const Tensor x(DType::f32, {8, 64});
  Tensor y(DType::f32, {8, 64});
  layer.forward(x, y);  // nothing is dropped, because the default mode is evaluation
  for (const double value : test::to_doubles(y)) EXPECT_EQ(value, 1);
}

TEST(Encoder, LayersDifferAndRunInOrder) {
  const Encoder stack({.width = 6, .norm_position = NormPosition::pre, .dtype = DType::f64, .seed = 3}, 2);
  EXPECT_FALSE(same_bits(stack.layers[0].attention.q.weight, stack.layers[1].attention.q.weight));
  Random random(1);
  const Tensor x = random.tensor(DType::f64, {4, 6});
  Tensor a(DType::f64, {4, 6}), b(DType::f64, {4, 6}), y(DType::f64, {4, 6});
  stack.layers[0].forward(x, a);
  stack.layers[1].forward(a, b);
  stack.final_norm.forward(b, a);
  stack.forward(x, y);
  EXPECT_TRUE(same_bits(y, a));
}

TEST(Encoder, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  EXPECT_EQ(error_message([] { Encoder({.width = 6, .seed = 1}, 0); }), "Encoder: count is 0; it must be at least 1");
  const Encoder two({.width = 6, .seed = 1}, 2), three({.width = 6, .seed = 1}, 3);
  Tensor x(DType::f32, {3, 6}), y(DType::f32, {3, 6}), d_x(DType::f32, {3, 6});
  Encoder::Saved saved;
  two.forward(x, y, {}, &saved);
  EXPECT_EQ(error_message([&] { three.backward(saved, y, {.x = d_x}); }), "Encoder.backward: saved is of 2 layers; this stack has 3");
  EXPECT_EQ(error_message([&] { two.backward(saved, y, {.x = x}); }), "Encoder.backward: d_x overlaps x; outputs need memory of their own");
  EXPECT_EQ(error_message([&] { two.forward(x, x); }), "Encoder.forward: y overlaps x; outputs need memory of their own");
}

TEST(EncoderLayer, GradientsOfTheInputDoNotNeedThoseOfTheParameters) {
  Random random(4);
  EncoderLayer layer(tiny());
  scramble(layer, random);
  const Tensor x = random.tensor(DType::f64, {3, 6}), d_y = random.tensor(DType::f64, {3, 6});
  Tensor y(DType::f64, {3, 6}), with(DType::f64, {3, 6}), without(DType::f64, {3, 6});
  EncoderLayer::Saved saved;
  layer.forward(x, y, {}, &saved);
  EncoderLayer grads = zeros_like(layer);
  layer.backward(saved, d_y, {.x = with, .parameters = &grads});
  layer.backward(saved, d_y, {.x = without});
  EXPECT_TRUE(same_bits(with, without));
}

TEST(EncoderLayer, APostNormLayerEndsWithItsNorm) {
  Random random(5);
  EncoderLayer layer({.width = 12, .heads = 3, .seed = 5});
  Tensor y(DType::f32, {4, 12});
  layer.forward(during_call(random.tensor(DType::f32, {4, 12}, -3, 3)), y);
  for (std::int64_t t = 0; t < 4; ++t) {
    double sum = 0, squares = 0;
    for (const double value : test::to_doubles(y.view().select(0, t))) {
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(sum, 0, 1e-5);
    EXPECT_NEAR(squares / 12, 1, 1e-5);
  }
}

TEST(EncoderLayer, WithoutPositionsTheOrderOfTokensDoesNotMatter) {
  Random random(6);
  EncoderLayer layer(tiny());
  const Tensor x = random.tensor(DType::f64, {5, 6});
  Tensor y(DType::f64, {5, 6}), reversed(DType::f64, {5, 6});
  layer.forward(x, y);
  layer.forward(x.view().slice(0, 0, 5, -1), reversed);
  EXPECT_TRUE(test::near(reversed.view().slice(0, 0, 5, -1), y, 1e-12));
}

TEST(EncoderLayer, ResultsDoNotDependOnStrides) {
  Random random(7);
  EncoderLayer layer(tiny());
  const Tensor x = random.tensor(DType::f64, {2, 3, 6}), d_y = random.tensor(DType::f64, {2, 3, 6});
  Tensor y(DType::f64, {2, 3, 6}), d_x(DType::f64, {2, 3, 6});
  EncoderLayer::Saved saved;
  layer.forward(x, y, {}, &saved);
  layer.backward(saved, d_y, {.x = d_x});
  const auto strided_x = random.strided_copy(x), strided_d_y = random.strided_copy(d_y);
  auto strided_y = random.empty_strided(DType::f64, {2, 3, 6}), strided_d_x = random.empty_strided(DType::f64, {2, 3, 6});
  layer.forward(strided_x, strided_y, {}, &saved);
  layer.backward(saved, strided_d_y, {.x = strided_d_x});
  EXPECT_TRUE(same_bits(strided_y, y));
  EXPECT_TRUE(same_bits(strided_d_x, d_x));
  EXPECT_TRUE(strided_y.padding_is_intact() && strided_d_x.padding_is_intact());
}

// Compares evaluation in chunks with a pass that stores `saved`. Such a pass is not cut into chunks.
TEST(EncoderLayer, EvaluationInChunksHasTheBitsOfOnePass) {
  Random random(8);
  for (const NormKind norm : {NormKind::layer_norm, NormKind::rms_norm}) {
    EncoderLayer layer({.width = 64, .heads = 4, .norm = norm, .seed = 8});
    scramble(layer, random);
    const Tensor x = random.tensor(DType::f32, {160, 40, 64}), attend_keys = random.tensor(DType::boolean, {160, 40});
    for (const int threads : {1, 2}) {
      LimitedThreads executor(threads);
      const Workspace workspace;
      const AttentionOptions options{.mask = {.attend_keys = attend_keys}, .executor = &executor, .workspace = &workspace};
      Tensor whole(DType::f32, x.shape()), parts(DType::f32, x.shape());
      EncoderLayer::Saved saved;
      layer.forward(x, whole, options, &saved);
      layer.forward(x, parts, options);
      EXPECT_TRUE(same_bits(parts, whole)) << threads;
    }
  }
}

TEST(EncoderLayer, ExtentsMayBeZero) {
  EncoderLayer layer(tiny());
  for (const Shape& shape : {Shape{0, 6}, Shape{0, 3, 6}, Shape{3, 0, 6}, Shape{1, 1, 6}}) {
    Tensor x(DType::f64, shape), y(DType::f64, shape), d_x(DType::f64, shape);
    EncoderLayer::Saved saved;
    EncoderLayer grads = zeros_like(layer);
    layer.forward(x, y, {}, &saved);
    layer.backward(saved, y, {.x = d_x, .parameters = &grads});
    EXPECT_EQ(d_x.shape(), shape);
  }
}

TEST(EncoderLayer, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  EncoderLayer layer(tiny());
  const EncoderLayer pre(tiny(Activation::gelu, NormPosition::pre));
  Tensor x(DType::f64, {3, 6}), y(DType::f64, {4, 6}), d_x(DType::f64, {3, 6}), narrow(DType::f32, {3, 6});
  EXPECT_EQ(error_message([&] { layer.forward(x, y); }), "EncoderLayer.forward: y is [4,6]; it must be [3,6]");
  EXPECT_EQ(error_message([&] { layer.forward(x, narrow); }),
            "EncoderLayer.forward: y is float32; it must be float64, as the other tensors");
  EXPECT_EQ(error_message([&] { layer.forward(x, x); }), "EncoderLayer.forward: y overlaps x; outputs need memory of their own");
  EXPECT_EQ(error_message([] { EncoderLayer({.width = 6, .heads = 4, .seed = 1}); }),
            "MultiHeadAttention: query_width 6 does not divide into 4 heads; give head_width");
  EXPECT_EQ(error_message([] { EncoderLayer({.width = -1, .seed = 1}); }), "MultiHeadAttention: query_width is -1; it must be at least 1");
  EXPECT_EQ(error_message([] { EncoderLayer({.width = 6, .dropout = 2, .seed = 1}); }), "EncoderLayer: dropout is 2; it must lie in [0,1]");
  EXPECT_EQ(error_message([&] { layer.forward(x, layer.attention.q.weight.view().slice(0, 0, 3)); }),
            "EncoderLayer.forward: y overlaps the parameter attention.q.weight; outputs need memory of their own");
  LayerConfig parallel = tiny();
  parallel.part_order = PartOrder::parallel;
  EXPECT_EQ(error_message([&] { EncoderLayer{parallel}; }),
            "EncoderLayer: part_order is parallel and norm_position post; parallel parts norm x first, so norm_position must be pre or both");
  layer.dropout = 0.1;
  EXPECT_EQ(error_message([&] { layer.forward(x, d_x, {.mode = Mode::training}); }),
            "EncoderLayer.forward: dropout in training needs dropout_seed, a different seed for each layer and step (derive_seed)");
  EncoderLayer::Saved saved;
  EXPECT_EQ(error_message([&] { layer.backward(saved, x, {.x = d_x}); }), "EncoderLayer.backward: saved is empty; give it to forward first");
  layer.forward(x, d_x, {}, &saved);
  EXPECT_EQ(error_message([&] { pre.backward(saved, d_x, {.x = x}); }),
            "EncoderLayer.backward: saved comes from a post-norm layer; this one is pre-norm");
  LayerConfig with_rms = tiny();
  with_rms.norm = NormKind::rms_norm;
  EXPECT_EQ(error_message([&] { EncoderLayer(with_rms).backward(saved, d_x, {.x = x}); }),
            "EncoderLayer.backward: saved comes from a layer with layer_norm; this one has rms_norm");
  layer.dropout = -3;
  EXPECT_EQ(error_message([&] { layer.forward(x, d_x); }), "EncoderLayer.forward: dropout is -3; it must lie in [0,1]");
}

// The members of a layer are public, so a layer may have members that its settings do not use. They must be an Error.
TEST(EncoderLayer, AMemberThatWouldBeIgnoredIsAnError) {
  Tensor x(DType::f64, {3, 6}), y(DType::f64, {3, 6}), d(DType::f64, {3, 6});
  for (const auto& [position, name] : {std::pair{NormPosition::post, "post"}, {NormPosition::pre, "pre"}}) {
    for (const auto& [member, member_name] : {std::pair{&EncoderLayer::attention_output_norm, "attention_output_norm"}, {&EncoderLayer::feed_forward_output_norm, "feed_forward_output_norm"}}) {
      EncoderLayer layer(tiny(Activation::gelu, position));
      EncoderLayer::Saved saved;
      layer.forward(x, y, {}, &saved);
      layer.*member = layer.attention_norm;
      const std::string expected = std::string("the layer has ") + member_name + ", but norm_position is " + name + "; only norm_position both has output norms";
      EXPECT_EQ(error_message([&] { layer.forward(x, y); }), "EncoderLayer.forward: " + expected);
      EXPECT_EQ(error_message([&] { layer.backward(saved, y, {.x = d}); }), "EncoderLayer.backward: " + expected);
    }
  }
  EncoderLayer both(tiny(Activation::gelu, NormPosition::both));
  both.forward(x, y);
  both.feed_forward_output_norm = {};
  EXPECT_EQ(error_message([&] { both.forward(x, y); }), "EncoderLayer.forward: norm_position is both, but the layer has no feed_forward_output_norm");
  EncoderLayer mixed(tiny(Activation::gelu, NormPosition::pre));
  mixed.mixture = MixtureOfExperts({.width = 6, .hidden_width = 5, .experts = 2, .chosen = 1, .dtype = DType::f64, .seed = 1});
  EXPECT_EQ(error_message([&] { mixed.forward(x, y); }), "EncoderLayer.forward: the layer has a mixture and a feed_forward; it must have one of them, so clear the other");
  mixed.feed_forward = {};
  mixed.forward(x, y);
}

}  // namespace
}  // namespace polyhead::nn
