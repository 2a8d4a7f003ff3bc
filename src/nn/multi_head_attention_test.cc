#include "polyhead/nn/multi_head_attention.h"

#include <gmock/gmock.h>

#include "nn/attention_test_trial.h"
#include "support/last_piece_first.h"

namespace polyhead::nn {
namespace {

using test::near;
using test::same_bits;

Tensor booleans(Random& random, const Shape& shape) {
  Tensor tensor(DType::boolean, shape);
  const std::vector<double> draws = test::to_doubles(random.tensor(DType::f64, shape));
  for (std::size_t i = 0; i < draws.size(); ++i) tensor.data<bool>()[i] = draws[i] > -0.5;
  return tensor;
}

std::vector<Setting> settings() {
  const auto with = [](MultiHeadAttentionConfig c) { c.dtype = DType::f64, c.seed = 1; return c; };
  return {
      {"self", with({.query_width = 6, .heads = 2}), {2, 3, 6}},
      {"unbatched", with({.query_width = 6, .heads = 3}), {4, 6}},
      {"cross", with({.query_width = 4, .heads = 2}), {2, 3, 4}, {2, 5, 4}},
      {"own widths", with({.query_width = 4, .key_width = 3, .value_width = 5, .heads = 2, .head_width = 3, .value_head_width = 2, .output_width = 7}),
       {2, 3, 4}, {2, 4, 3}, {2, 4, 5}},
      {"no biases, no output projection", with({.query_width = 4, .heads = 2, .bias = false, .output = OutputProjection::none}), {2, 3, 4}},
      {"grouped heads", with({.query_width = 8, .heads = 4, .kv_heads = 2}), {1, 3, 8}},
      {"first axis", with({.query_width = 4, .heads = 2, .axis = 0}), {3, 2, 2, 4}},
      {"axis -3, pair bias, gate, key mask", with({.query_width = 4, .heads = 2, .gate = Gate::sigmoid, .axis = -3}), {2, 3, 2, 4}, {}, {}, {2, 1, 2, 3, 3},
       [](Random& r) { return Mask{.attend_keys = keep(booleans(r, {2, 2, 3}))}; }},
      {"shared pair bias", with({.query_width = 4, .heads = 2, .gate = Gate::sigmoid}), {2, 2, 3, 4}, {}, {}, {1, 1, 2, 3, 3}},
      {"bias over queries and keys", with({.query_width = 4, .heads = 2}), {2, 3, 4}, {}, {}, {3, 3}},
      {"bias constant over keys", with({.query_width = 4, .heads = 2, .add_bias_kv = true}), {2, 3, 4}, {}, {}, {2, 2, 3, 1}},
      {"global", with({.query_width = 4, .heads = 2, .global_query = GlobalQuery::mean}), {2, 3, 4}},
      {"global, gated, masked mean", with({.query_width = 4, .heads = 2, .gate = Gate::sigmoid, .global_query = GlobalQuery::masked_mean, .axis = -3}),
       {2, 3, 2, 4}, {}, {}, {}, [](Random& r) { return Mask{.block_keys = keep(booleans(r, {2, 2, 3}))}; }},
      {"learned and zero key", with({.query_width = 4, .heads = 2, .add_bias_kv = true, .add_zero_attn = true}), {2, 3, 4}, {2, 4, 4}, {}, {2, 2, 3, 4},
       [](Random& r) { return Mask{.block = keep(booleans(r, {2, 1, 3, 4})), .attend_keys = keep(booleans(r, {2, 4}))}; }},
      {"zero key, causal", with({.query_width = 4, .heads = 2, .add_zero_attn = true}), {2, 3, 4}, {}, {}, {},
       [](Random&) { return Mask{.causal = Causal::top_left()}; }},
      {"zero key, diagonal per sequence", with({.query_width = 4, .heads = 2, .add_zero_attn = true}), {2, 3, 4}, {2, 5, 4}, {}, {},
       [](Random&) { return Mask{.causal = Causal::top_left(), .diagonal_offsets = keep(Tensor::of<std::int64_t>({2}, {2, -1}))}; }},
      {"dropout", with({.query_width = 4, .heads = 2, .dropout = 0.4}), {2, 3, 4}, {}, {}, {2, 2, 3, 3}, {}, Mode::training},
      {"softcap, scale, window", with({.query_width = 4, .heads = 2, .scale = 0.7, .softcap = 1.5}), {1, 5, 4}, {}, {}, {},
       [](Random&) { return Mask{.window = {.left = 1, .right = 1}}; }},
      {"uniform empty rows", with({.query_width = 4, .heads = 2, .empty_rows = EmptyRows::uniform}), {2, 3, 4}, {}, {}, {},
       [](Random&) { return Mask{.key_lengths = keep(Tensor::of<std::int64_t>({2}, {0, 2}))}; }},
      {"masks with heads", with({.query_width = 4, .heads = 2, .add_zero_attn = true}), {2, 3, 4}, {}, {}, {},
       [](Random& r) { return Mask{.attend = keep(booleans(r, {2, 2, 3, 3}))}; }},
      {"slopes, causal, documents", with({.query_width = 4, .heads = 2, .gate = Gate::sigmoid}), {2, 5, 4}, {}, {}, {},
       [](Random&) { return Mask{.causal = Causal::top_left(), .query_offsets = keep(Tensor::of<std::int64_t>({3}, {0, 2, 5}))}; }, Mode::evaluation,
       {}, {2}},
      {"table of buckets, cross, sink, dropout", with({.query_width = 4, .heads = 2, .dropout = 0.4}), {2, 3, 4}, {2, 5, 4}, {}, {}, {},
       Mode::training, {2}, {2, 4}},
      {"extents of one", with({.query_width = 1}), {1, 1, 1}},
      {"no keys", with({.query_width = 4, .heads = 2}), {2, 3, 4}, {2, 0, 4}},
      {"no sequences", with({.query_width = 4, .heads = 2, .gate = Gate::sigmoid}), {0, 3, 4}},
      {"no queries, learned key", with({.query_width = 4, .heads = 2, .add_bias_kv = true}), {2, 0, 4}, {2, 3, 4}},
  };
}

TEST(MultiHeadAttention, GradientsAreCentralDifferences) {
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    Trial run(setting);
    expect_central_differences(run);
  }
}

TEST(MultiHeadAttention, ARestoredPassHasTheGradientsOfThePass) {
  std::vector<Setting> all = settings();
  all.push_back({"masked mean", {.query_width = 4, .heads = 2, .global_query = GlobalQuery::masked_mean, .dtype = DType::f64}, {2, 8, 4}, {}, {}, {},
                 [](Random& r) { return Mask{.attend_keys = keep(booleans(r, {2, 8}))}; }});
  for (const Setting& setting : all) {
    SCOPED_TRACE(setting.name);
    Trial run(setting);
    run.backward();
    std::vector<Tensor> kept;
    run.saved.visit([&](const char*, const Tensor& tensor) { kept.push_back(tensor); });
    MultiHeadAttention::Saved restored;
    std::size_t at = 0;
    restored.visit([&](const char*, Tensor& tensor) { tensor = std::move(kept[at++]); });
    run.layer.restore(run.input, run.options, restored);
    MultiHeadAttention gradients = zeros_like(run.layer);
    Tensor d_query(DType::f64, run.query.shape()), d_bias = zeros_like(run.bias), d_sink = zeros_like(run.sink);
    run.layer.backward(restored, run.d_out, {.query = d_query, .bias = d_bias, .sink = d_sink, .parameters = &gradients});
    EXPECT_TRUE(same_bits(d_query, run.d_query));
    EXPECT_TRUE(!d_bias || same_bits(d_bias, run.d_bias));
    EXPECT_TRUE(!d_sink || same_bits(d_sink, run.d_sink));
    const auto expected = parameters(run.gradients);
    at = 0;
    gradients.visit([&](const std::string& name, const Tensor& tensor) { EXPECT_TRUE(same_bits(tensor, *expected[at++].second)) << name; });
  }
}

TEST(MultiHeadAttention, RestoreRefusesTensorsOfAnotherPass) {
  Trial run({"gate", {.query_width = 4, .heads = 2, .gate = Gate::sigmoid, .dtype = DType::f64}, {2, 3, 4}});
  for (int changed = 0; changed < 7; ++changed) {
    run.loss();
    int at = 0;
    std::string name;
    run.saved.visit([&](const char* of, Tensor& tensor) {
      if (at++ != changed || !tensor) return;
      name = of;
      tensor = changed % 2 == 0 ? Tensor() : Tensor(DType::f64, {2, 3, 5});
    });
    if (name.empty()) continue;
    EXPECT_THAT([&] { run.layer.restore(run.input, run.options, run.saved); }, testing::ThrowsMessage<Error>(testing::HasSubstr("saved." + name)));
  }
}

TEST(MultiHeadAttention, MapsHaveTheShapeOfMapsShapeAndRowsSumToOne) {
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    // with a mask or without keys, rows may be empty, and the attention weights of an empty row do not sum to 1
    if (setting.mask || setting.key == Shape{2, 0, 4}) continue;
    Trial run(setting);
    expect_maps_of_whole_rows(run);
  }
}

// The forward pass must write the same attention weights as attention_map(), and writing them must not change the output.
TEST(MultiHeadAttention, TheForwardPassWritesAttentionWeightsToo) {
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    Trial run(setting);
    run.loss();
    const Shape shape = run.layer.maps_shape(run.input);
    Tensor map(DType::f64, shape), weights(DType::f64, shape), out(DType::f64, run.out.shape());
    SdpaOptions sdpa = run.saved.sdpa;
    attention_map(run.saved.maps(), map, sdpa);
    run.layer.forward(run.input, out, run.options, &run.saved, weights);
    EXPECT_TRUE(same_bits(out, run.out));
    EXPECT_TRUE(near(weights, map, 1e-14));
  }
}

TEST(MultiHeadAttention, IsTheFormula) {
  Trial run({"formula", {.query_width = 4, .heads = 2, .dtype = DType::f64}, {3, 4}});
  run.loss();
  const auto project = [&](const Linear& map, std::int64_t position, std::int64_t feature) {
    double sum = map.bias.data<double>()[feature];
    for (std::int64_t i = 0; i < 4; ++i) sum += map.weight.data<double>()[feature * 4 + i] * run.query.data<double>()[position * 4 + i];
    return sum;
  };
  double merged[4];
  for (std::int64_t head = 0; head < 2; ++head) {
    double weight[3], total = 0;
    for (std::int64_t s = 0; s < 3; ++s) {
      double score = 0;
      for (std::int64_t h = 0; h < 2; ++h) score += project(run.layer.q, 1, head * 2 + h) * project(run.layer.k, s, head * 2 + h);
      total += weight[s] = std::exp(score / std::sqrt(2.0));
    }
    for (std::int64_t h = 0; h < 2; ++h) {
      merged[head * 2 + h] = 0;
      for (std::int64_t s = 0; s < 3; ++s) merged[head * 2 + h] += weight[s] / total * project(run.layer.v, s, head * 2 + h);
    }
  }
  for (std::int64_t o = 0; o < 4; ++o) {
    double expected = run.layer.output.bias.data<double>()[o];
    for (std::int64_t i = 0; i < 4; ++i) expected += run.layer.output.weight.data<double>()[o * 4 + i] * merged[i];
    EXPECT_NEAR(run.out.data<double>()[4 + o], expected, 1e-12);
  }
}

TEST(MultiHeadAttention, AnyAxisEqualsAxisMinusTwoOfTheMovedInput) {
  MultiHeadAttentionConfig config{.query_width = 4, .heads = 2, .axis = 0, .dtype = DType::f64, .seed = 3};
  Random random(2);
  const Tensor x = random.tensor(DType::f64, {5, 2, 3, 4});
  Tensor out(DType::f64, x.shape()), moved_out(DType::f64, {2, 3, 5, 4});
  MultiHeadAttention(config).forward({.query = x}, out);
  config.axis = -2;
  MultiHeadAttention(config).forward({.query = x.view().move_axis(0, -2)}, moved_out);
  EXPECT_TRUE(same_bits(out.view().move_axis(0, -2), moved_out));
}

TEST(MultiHeadAttention, TheGlobalQueryIsTheMeanOfTheProjectedQueries) {
  Trial run({"global", {.query_width = 4, .heads = 2, .global_query = GlobalQuery::mean, .dtype = DType::f64}, {1, 3, 4}});
  run.loss();
  Tensor projected(DType::f64, {1, 3, 4});
  run.layer.q.forward(run.query, projected);
  for (std::int64_t j = 0; j < 4; ++j) {
    const double* p = projected.data<double>() + j;
    EXPECT_NEAR(run.saved.q.data<double>()[j], (p[0] + p[4] + p[8]) / 3, 1e-14);
  }
  EXPECT_EQ(run.out.shape(), (Shape{1, 1, 4}));
}

TEST(MultiHeadAttention, EvaluationIgnoresDropoutAndTrainingRepeatsWithItsSeed) {
  const Setting setting{"dropout", {.query_width = 8, .heads = 2, .dropout = 0.5, .dtype = DType::f64}, {2, 6, 8}};
  Trial run(setting);
  run.loss();
  const Tensor evaluation = run.out;
  run.options.mode = Mode::training;
  run.loss();
  const Tensor training = run.out;
  EXPECT_FALSE(same_bits(training, evaluation));
  run.loss();
  EXPECT_TRUE(same_bits(run.out, training));
  run.options.dropout_seed = 6;
  run.loss();
  EXPECT_FALSE(same_bits(run.out, training));
}

TEST(MultiHeadAttention, EveryDtypeGivesTheFloat64Result) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 1e-5}, std::pair{DType::f16, 2e-2}, std::pair{DType::bf16, 2e-1}}) {
    SCOPED_TRACE(info(dtype).name);
    MultiHeadAttentionConfig config{.query_width = 8, .heads = 2, .gate = Gate::sigmoid, .dtype = dtype, .seed = 4};
    Random random(9);
    const MultiHeadAttention layer(config);
    config.dtype = DType::f64;
    MultiHeadAttention exact(config);
    const auto parameters_of = parameters(layer);
    std::size_t i = 0;
    exact.visit([&](const std::string&, Tensor& tensor) { copy(*parameters_of[i++].second, tensor); });
    const Tensor x = random.tensor(dtype, {2, 3, 8});
    Tensor out(dtype, x.shape()), expected(DType::f64, x.shape());
    layer.forward({.query = x}, out);
    exact.forward({.query = during_call(Tensor::copy_of(x, DType::f64))}, expected);
    EXPECT_TRUE(near(Tensor::copy_of(out, DType::f64), expected, tolerance * test::largest_magnitude(expected)));
  }
}

TEST(MultiHeadAttention, InitialisedAsTorch) {
  const MultiHeadAttention layer({.query_width = 64, .heads = 4, .gate = Gate::sigmoid, .add_bias_kv = true, .seed = 1});
  const double packed = std::sqrt(6.0 / (4 * 64));
  for (const Linear* map : {&layer.q, &layer.k, &layer.v}) {
    EXPECT_LE(test::largest_magnitude(map->weight), packed);
    EXPECT_GT(test::largest_magnitude(map->weight), 0.99 * packed);
    EXPECT_EQ(test::largest_magnitude(map->bias), 0);
  }
  EXPECT_LE(test::largest_magnitude(layer.output.weight), 1.0 / 8);
  EXPECT_EQ(test::largest_magnitude(layer.output.bias), 0);
  EXPECT_EQ(test::largest_magnitude(layer.gate.weight), 0);
  EXPECT_EQ(layer.gate.bias.data<float>()[0], 1);
  EXPECT_FALSE(same_bits(layer.q.weight, layer.k.weight));
}

TEST(MultiHeadAttention, AParameterGradientOverManySequencesIsRoundedOnce) {
  const MultiHeadAttention layer({.query_width = 1, .output = OutputProjection::none, .add_bias_kv = true, .dtype = DType::bf16, .seed = 1});
  constexpr std::int64_t kSequences = 1000;  // if sums were stored in bfloat16 after each addition, a sum of ones would stop at 256
  const Tensor query(DType::bf16, {kSequences, 1, 1});
  Tensor out(DType::bf16, query.shape()), d_out(DType::bf16, query.shape());
  fill(d_out, 2);  // where the query is 0, both keys have the attention weight 1/2
  MultiHeadAttention::Saved saved;
  layer.forward({.query = query}, out, {}, &saved);
  MultiHeadAttention grads = zeros_like(layer);
  layer.backward(saved, d_out, {.parameters = &grads});
  EXPECT_NEAR(test::to_doubles(grads.bias_v)[0], kSequences, 4);
}

TEST(MultiHeadAttention, ABiasGradientWithAddedKeysIsRoundedOnceAndMayShareItsMemory) {
  for (const bool shared : {false, true}) {
    MultiHeadAttentionConfig config{.query_width = 2, .heads = 2, .add_zero_attn = true, .dtype = DType::f64, .seed = 1};
    Random random(3);
    const Tensor query = random.tensor(DType::f64, {300, 4, 2}), d_out = random.tensor(DType::f64, {300, 4, 2}),
                 bias = random.tensor(DType::f64, {4, 1});
    const auto gradient = [&](DType dtype, TensorView d_bias) {
      config.dtype = dtype;
      const MultiHeadAttention layer(config);
      const Tensor x = Tensor::copy_of(query, dtype), d = Tensor::copy_of(d_out, dtype), b = Tensor::copy_of(bias, dtype);
      Tensor out(dtype, x.shape());
      MultiHeadAttention::Saved saved;
      layer.forward({.query = x}, out, {.bias = b}, &saved);
      layer.backward(saved, d, {.bias = d_bias});
    };
    Tensor exact(DType::f64, {4, 1}), narrow(DType::f32, shared ? Shape{1, 1} : Shape{4, 1});
    gradient(DType::f64, exact);
    gradient(DType::f32, narrow.view().expand({4, 1}));
    double total = 0;
    for (const double x : test::to_doubles(exact)) total += x;
    if (shared) {
      EXPECT_NEAR(test::to_doubles(narrow)[0], total, 1e-4);
    } else {
      EXPECT_TRUE(near(Tensor::copy_of(narrow, DType::f64), exact, 1e-4));
    }
  }
}

TEST(MultiHeadAttention, BackwardRunsOnItsOwnExecutorAndNotOnThatOfForward) {
  const MultiHeadAttention layer({.query_width = 64, .heads = 8, .seed = 1});
  const Tensor x = Random(1).tensor(DType::f32, {8, 128, 64});  // the input is large enough for several threads
  Tensor out(DType::f32, x.shape()), d_x(DType::f32, x.shape());
  test::LastPieceFirst of_backward(2);
  MultiHeadAttention::Saved saved;
  {
    test::LastPieceFirst of_forward(2);
    layer.forward({.query = x}, out, {.executor = &of_forward}, &saved);
    EXPECT_GT(of_forward.runs, 0);
  }
  EXPECT_EQ(saved.sdpa.executor, nullptr);
  layer.backward(saved, out, {.query = d_x}, {.executor = &of_backward});
  EXPECT_GT(of_backward.runs, 0);
}

}  // namespace
}  // namespace polyhead::nn
