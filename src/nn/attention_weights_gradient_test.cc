// Compares gradients of losses on attention weights with central differences.
#include "nn/attention_test_trial.h"
#include "polyhead/nn/encoder_decoder.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::same_bits;

// A loss on the attention weights p of some heads: sum(p d_p), with random d_p. A head may occur twice.
struct WeightsLoss {
  WeightsLoss(Random& random, const Shape& maps, const std::vector<std::int64_t>& heads, std::int64_t layer = 0) : map(DType::f64, maps) {
    Shape one = maps;
    one.erase(maps.size() - 3);
    while (d_p.size() < heads.size()) d_p.push_back(random.tensor(DType::f64, one));
    for (std::size_t i = 0; i < heads.size(); ++i) gradients.push_back({layer, heads[i], d_p[i]});
  }
  double operator()(const MultiHeadAttention::Saved& saved) {
    attention_map(saved.maps(), map, saved.sdpa);
    double sum = 0;
    for (const AttentionWeightsGradient& one : gradients) sum += test::weighted_sum(map.view().select(-3, static_cast<int>(one.head)), one.d_p);
    return sum;
  }
  Tensor map;
  std::vector<Tensor> d_p;
  std::vector<AttentionWeightsGradient> gradients;
};

TEST(AttentionWeightsGradient, EqualsCentralDifferences) {
  const auto with = [](MultiHeadAttentionConfig c) { c.dtype = DType::f64, c.seed = 1; return c; };
  const Setting settings[] = {
      {"self", with({.query_width = 6, .heads = 2}), {2, 3, 6}},
      {"unbatched, own scale", with({.query_width = 6, .heads = 3, .scale = 0.7}), {4, 6}},
      {"cross, own widths", with({.query_width = 4, .key_width = 3, .value_width = 5, .heads = 2, .head_width = 3, .value_head_width = 2}), {2, 3, 4}, {2, 4, 3}, {2, 4, 5}},
      {"grouped heads, causal", with({.query_width = 8, .heads = 4, .kv_heads = 2}), {1, 3, 8}, {}, {}, {}, [](Random&) { return Mask{.causal = Causal::top_left()}; }},
      {"axis -3, gate", with({.query_width = 4, .heads = 2, .gate = Gate::sigmoid, .axis = -3}), {2, 3, 2, 4}},
      {"empty row", with({.query_width = 4, .heads = 2}), {2, 3, 4}, {}, {}, {}, [](Random&) { return Mask{.key_lengths = keep(Tensor::of<std::int64_t>({2}, {0, 2}))}; }},
      {"learned and zero key, dropout", with({.query_width = 4, .heads = 2, .add_bias_kv = true, .add_zero_attn = true, .dropout = 0.4}), {2, 3, 4}, {2, 4, 4}, {}, {}, {}, Mode::training},
      {"global", with({.query_width = 4, .heads = 2, .global_query = GlobalQuery::mean}), {2, 3, 4}},
      {"rotary", with({.query_width = 8, .heads = 2}), {2, 3, 8}},
      {"softcap", with({.query_width = 4, .heads = 2, .softcap = 0.7}), {2, 3, 4}},
      {"unmasked rows", with({.query_width = 4, .heads = 2, .empty_rows = EmptyRows::unmasked}), {2, 3, 4}, {}, {}, {}, [](Random&) { return Mask{.key_lengths = keep(Tensor::of<std::int64_t>({2}, {0, 2}))}; }},
      {"bias, sink", with({.query_width = 4, .heads = 2}), {2, 3, 4}, {}, {}, {3, 3}, {}, Mode::evaluation, {2}},
      {"no sequences", with({.query_width = 4, .heads = 2}), {0, 3, 4}},
      {"no keys", with({.query_width = 4, .heads = 2}), {2, 3, 4}, {2, 0, 4}},
  };
  for (const Setting& setting : settings) {
    SCOPED_TRACE(setting.name);
    Trial run(setting);
    const auto tables = rotary_tables({0, 3, 4}, 4);
    if (std::string(setting.name) == "rotary") run.options.rotary = {.cos = tables.first, .sin = tables.second};
    WeightsLoss of_weights(run.random, run.layer.maps_shape(run.input), {1, 0, 1});
    run.loss();
    MultiHeadAttention::Gradients wanted{.parameters = &run.gradients, .attention_weights = of_weights.gradients};
    wanted.query = run.d_query = zeros_like(run.query);
    if (run.key) wanted.key = run.d_key = zeros_like(run.key);
    if (run.value) wanted.value = run.d_value = zeros_like(run.value);
    run.layer.backward(run.saved, run.d_out, wanted);
    std::vector<test::Leaf> leaves = run.leaves();
    std::erase_if(leaves, [](const test::Leaf& leaf) { return !leaf.gradient; });
    test::expect_gradients(
        [&] {
          const double of_out = run.loss();
          return of_out + of_weights(run.saved);
        },
        leaves);
  }
}

// Keys and queries beyond the lengths, and their elements of d_p, must not be read.
TEST(AttentionWeightsGradient, MaskedKeysMayBeNaN) {
  Random random(3);
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .dtype = DType::f64, .seed = 1});
  const Tensor lengths = Tensor::of<std::int64_t>({2}, {3, 1}), query = random.tensor(DType::f64, {2, 3, 4}), d_out = random.tensor(DType::f64, {2, 3, 4});
  Tensor key = random.tensor(DType::f64, {2, 3, 4}), d_p = random.tensor(DType::f64, {2, 3, 3}), expected;
  for (const bool spoilt : {false, true}) {
    if (spoilt) fill(key.view().select(0, 1).slice(0, 1, 3), test::kNaN), fill(d_p.view().select(0, 1).slice(1, 1, 3), test::kNaN);
    MultiHeadAttention::Saved saved;
    MultiHeadAttention gradients = zeros_like(layer);
    Tensor out(DType::f64, {2, 3, 4}), d_query = out;
    const AttentionWeightsGradient given[] = {{.head = 1, .d_p = d_p}};
    layer.forward({.query = query, .key = key}, out, {.mask = {.key_lengths = lengths}}, &saved);
    layer.backward(saved, d_out, {.query = d_query, .parameters = &gradients, .attention_weights = given});
    EXPECT_TRUE(!spoilt || same_bits(d_query, expected));
    expected = d_query;
    for (const double x : test::to_doubles(gradients.k.weight)) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(AttentionWeightsGradient, OfLayersInAStackEqualsCentralDifferences) {
  Random random(4);
  const auto draw = [&](auto model) {
    model.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -1, 1); });
    return model;
  };
  Encoder encoder = draw(Encoder({.width = 4, .heads = 2, .hidden_width = 3, .norm_position = NormPosition::pre, .dtype = DType::f64, .seed = 1}, 2));
  Decoder decoder = draw(Decoder({.width = 4, .heads = 2, .hidden_width = 3, .dtype = DType::f64, .seed = 1}, 2));
  Tensor x = random.tensor(DType::f64, {2, 3, 4}), z = random.tensor(DType::f64, {2, 2, 4}), memory(DType::f64, x.shape()), y(DType::f64, z.shape());
  const Tensor d_y = random.tensor(DType::f64, y.shape());
  WeightsLoss of_encoder(random, {2, 2, 3, 3}, {0}, 0), of_self(random, {2, 2, 2, 2}, {1}, 1), of_memory(random, {2, 2, 2, 3}, {0, 1}, 1),
      of_first(random, {2, 2, 2, 3}, {1}, 0);
  std::vector<AttentionWeightsGradient> both = of_memory.gradients;
  both.insert(both.begin(), of_first.gradients[0]);
  Encoder::Saved encoded;
  Decoder::Saved decoded;
  const auto loss = [&] {
    encoder.forward(x, memory, {}, &encoded);
    decoder.forward(z, memory, y, {}, &decoded);
    return test::weighted_sum(y, d_y) + of_encoder(encoded.layers[0].attention) + of_self(decoded.layers[1].self_attention) +
           of_memory(decoded.layers[1].cross_attention) + of_first(decoded.layers[0].cross_attention);
  };
  loss();
  Encoder d_encoder = zeros_like(encoder);
  Decoder d_decoder = zeros_like(decoder);
  Tensor d_x = zeros_like(x), d_z = zeros_like(z), d_memory = zeros_like(memory);
  decoder.backward(decoded, d_y, {.x = d_z, .memory = d_memory, .parameters = &d_decoder, .self_attention_weights = of_self.gradients, .cross_attention_weights = both});
  encoder.backward(encoded, d_memory, {.x = d_x, .parameters = &d_encoder, .attention_weights = of_encoder.gradients});
  auto leaves = test::parameter_leaves(encoder, d_encoder);
  for (const test::Leaf& leaf : test::parameter_leaves(decoder, d_decoder)) leaves.push_back(leaf);
  leaves.push_back({"x", x, d_x}), leaves.push_back({"z", z, d_z});
  test::expect_gradients(loss, leaves);
}

// The loss is the sum of a loss on a model's output and a loss on its attention weights. Its gradient must equal central differences.
TEST(AttentionWeightsGradient, OfAModelEqualsCentralDifferences) {
  Random random(5);
  EncoderDecoder model({.source_count = 4, .layer = {.width = 4, .heads = 2, .hidden_width = 3, .dtype = DType::f64, .seed = 1}, .shared_embedding = true, .tied_output = true});
  const Tensor source = Tensor::of<std::int64_t>({1, 3}, {1, 0, 3}), target = Tensor::of<std::int64_t>({1, 2}, {2, 2});
  Tensor logits(DType::f64, {1, 2, 4});
  const Tensor d_logits = random.tensor(DType::f64, logits.shape());
  WeightsLoss guide(random, {1, 2, 2, 3}, {1});
  EncoderDecoder::Saved saved;
  EncoderDecoder grads = zeros_like(model);
  const auto loss = [&] {
    model.forward(source, target, logits, {}, &saved);
    return test::weighted_sum(logits, d_logits) + guide(saved.decoder.layers[0].cross_attention);
  };
  loss();
  model.backward(saved, d_logits, {.parameters = &grads, .source_attention_weights = guide.gradients});
  test::expect_gradients(loss, test::parameter_leaves(model, grads));
}

TEST(AttentionWeightsGradient, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  Random random(6);
  const Tensor x = random.tensor(DType::f64, {2, 3, 4}), d_p(DType::f64, {2, 3, 3}), narrow(DType::f64, {2, 3, 2}), bias(DType::f64, {3, 3});
  const auto message = [&](MultiHeadAttentionConfig config, const AttentionWeightsGradient& given, bool of_bias = false) {
    config.query_width = 4, config.heads = 2, config.dtype = DType::f64, config.seed = 1;
    const MultiHeadAttention layer(config);
    MultiHeadAttention gradients = zeros_like(layer);
    MultiHeadAttention::Saved saved;
    Tensor out = zeros_like(x), d_x = zeros_like(x), d_bias = zeros_like(bias);
    layer.forward({.query = x}, out, {.bias = bias}, &saved);
    return error_message([&] {
      layer.backward(saved, out, {.query = d_x, .bias = of_bias ? d_bias.view() : TensorView(), .parameters = &gradients, .attention_weights = {&given, 1}});
    });
  };
  const std::string start = "MultiHeadAttention.backward: ", of = start + "gradients of attention weights cannot be computed with ";
  EXPECT_EQ(message({}, {.head = 1, .d_p = d_p}), "");
  EXPECT_EQ(message({}, {.head = 2, .d_p = d_p}), start + "a gradient of attention weights is given for head 2; there are 2 heads");
  EXPECT_EQ(message({}, {.layer = 1, .d_p = d_p}), start + "a gradient of attention weights is given for layer 1; this is a single layer");
  EXPECT_EQ(message({}, {.d_p = narrow}), start + "d_p is [2,3,2]; it must be [2,3,3]");
  EXPECT_EQ(message({.empty_rows = EmptyRows::uniform}, {.d_p = d_p}), of + "empty_rows uniform");
  EXPECT_EQ(message({.sink = true}, {.d_p = d_p}), of + "a gradient of sink logits");
  EXPECT_EQ(message({}, {.d_p = d_p}, true), of + "a gradient of a bias");
  const Encoder encoder({.width = 4, .dtype = DType::f64, .seed = 1}, 2);
  Encoder::Saved saved;
  Tensor y = zeros_like(x), d_x = zeros_like(x);
  encoder.forward(x, y, {}, &saved);
  const AttentionWeightsGradient given[] = {{.layer = 2, .d_p = d_p}};
  EXPECT_EQ(error_message([&] { encoder.backward(saved, y, {.x = d_x, .attention_weights = given}); }),
            "Encoder.backward: a gradient of attention weights is given for layer 2; there are 2 layers");
}

}  // namespace
}  // namespace polyhead::nn
