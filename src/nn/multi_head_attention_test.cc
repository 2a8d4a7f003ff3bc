#include "polyhead/nn/multi_head_attention.h"

#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <numeric>

#include "nn/attention_test_trial.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::near;
using test::Random;
using test::same_bits;

Tensor booleans(Random& random, const Shape& shape) {
  Tensor tensor(DType::boolean, shape);
  const std::vector<double> draws = test::to_doubles(random.tensor(DType::f64, shape));
  for (std::size_t i = 0; i < draws.size(); ++i) tensor.data<bool>()[i] = draws[i] > -0.5;
  return tensor;
}

// Keeps what masks point at alive for the length of the test.
Tensor& keep(Tensor tensor) {
  static std::vector<std::unique_ptr<Tensor>> kept;
  kept.push_back(std::make_unique<Tensor>(std::move(tensor)));
  return *kept.back();
}

std::vector<Setting> settings() {
  const auto with = [](MultiHeadAttentionConfig c) { c.dtype = DType::f64; return c; };
  return {
      {"self", with({.query_width = 6, .heads = 2}), {2, 3, 6}},
      {"unbatched", with({.query_width = 6, .heads = 3}), {4, 6}},
      {"cross", with({.query_width = 4, .heads = 2}), {2, 3, 4}, {2, 5, 4}},
      {"own widths", with({.query_width = 4, .key_width = 3, .value_width = 5, .heads = 2, .head_width = 3, .value_head_width = 2, .output_width = 7}),
       {2, 3, 4}, {2, 4, 3}, {2, 4, 5}},
      {"no biases, no output map", with({.query_width = 4, .heads = 2, .bias = false, .output = OutputProjection::none}), {2, 3, 4}},
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
      {"sink of each head", with({.query_width = 4, .heads = 2, .gate = Gate::sigmoid}), {2, 3, 4}, {}, {}, {}, {}, Mode::evaluation, {2}},
      {"sink, causal, dropout, learned key", with({.query_width = 4, .heads = 2, .add_bias_kv = true, .dropout = 0.4}), {2, 3, 4}, {}, {}, {},
       [](Random&) { return Mask{.causal = Causal::top_left()}; }, Mode::training, {2, 2, 1}},
      {"sink of each query, bias, empty rows", with({.query_width = 4, .heads = 4, .kv_heads = 2}), {2, 3, 4}, {}, {}, {3, 3},
       [](Random&) { return Mask{.key_lengths = keep(Tensor::of<std::int64_t>({2}, {0, 2}))}; }, Mode::evaluation, {2, 4, 3}},
      {"sink, global", with({.query_width = 4, .heads = 2, .global_query = GlobalQuery::mean}), {2, 3, 4}, {}, {}, {}, {}, Mode::evaluation, {2}},
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
    run.backward();
    std::vector<test::Leaf> leaves = test::parameter_leaves(run.layer, run.gradients);
    leaves.push_back({"query", run.query, run.d_query});
    if (run.key) leaves.push_back({"key", run.key, run.d_key});
    if (run.value) leaves.push_back({"value", run.value, run.d_value});
    if (run.bias) leaves.push_back({"bias", run.bias, run.d_bias});
    if (run.sink) leaves.push_back({"sink", run.sink, run.d_sink});
    test::expect_gradients([&] { return run.loss(); }, leaves);
  }
}

// Gradients of all parameters have the same bits whatever stands at positions that no query may attend to, and in queries without a key.
TEST(MultiHeadAttention, NonFiniteInputsThatAreMaskedReachNoParameter) {
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
        const std::int64_t queries = m == 3 ? 3 : 4;  // causal, top_left: queries 0 to 2 reach keys 0 to 2 only
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

// A key of probability 0 is no masked key: without a mask its NaN reaches the gradients (IEEE).
TEST(MultiHeadAttention, NonFiniteInputsOfKeptKeysReachTheParameters) {
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

// Packed documents have the bits of each document alone, in the output and in the gradient of the input, also where the batch is cut into chunks.
TEST(MultiHeadAttention, DocumentsAreIndependent) {
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
  LimitedThreads one(1);  // several chunks
  layer.forward({.query = x}, evaluated, {.mask = packed, .executor = &one});
  EXPECT_TRUE(same_bits(evaluated, out));

  const auto refused = [&](const MultiHeadAttentionConfig& config) {
    const MultiHeadAttention other(config);
    Tensor target(DType::f32, other.output_shape({.query = x}));
    return error_message([&] { other.forward({.query = x}, target, {.mask = {.query_offsets = offsets}}); });
  };
  EXPECT_EQ(refused({.query_width = 64, .add_zero_attn = true}),
            "MultiHeadAttention.forward: documents (query_offsets) with add_bias_kv or add_zero_attn, whose keys belong to none");
  EXPECT_EQ(refused({.query_width = 64, .global_query = GlobalQuery::mean}),
            "MultiHeadAttention.forward: documents (query_offsets) with a global query, which spans all of them");
}

TEST(MultiHeadAttention, MapsAreOfTheShapeThatIsPromisedAndRowsSumToOneLessTheShareOfTheSink) {
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    if (setting.mask || setting.key == Shape{2, 0, 4}) continue;  // rows may be empty
    Trial run(setting);
    run.loss();
    Tensor maps(DType::f64, run.layer.maps_shape(run.input));
    attention_map(run.saved.maps(), maps, run.saved.sdpa);
    const std::vector<double> p = test::to_doubles(maps);
    const std::vector<double> lse = test::to_doubles(run.saved.lse);
    std::vector<double> sink(lse.size(), -std::numeric_limits<double>::infinity());
    if (run.sink) sink = test::to_doubles((run.sink.view().rank() == 1 ? run.sink.view().unsqueeze(-1) : run.sink.view()).expand(run.saved.lse.shape()));
    const auto keys = static_cast<std::ptrdiff_t>(maps.extent(-1));
    for (std::size_t row = 0; row < lse.size(); ++row) {
      const auto first = p.begin() + static_cast<std::ptrdiff_t>(row) * keys;
      EXPECT_NEAR(std::accumulate(first, first + keys, 0.0), 1 - std::exp(sink[row] - lse[row]), 1e-12);
    }
  }
}

// out = concat(heads) Wo with head_i = softmax(Q_i K_i^T / sqrt(H)) V_i, written out for one query.
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

TEST(MultiHeadAttention, AnyAxisIsTheSecondToLastOneOfTheMovedInput) {
  MultiHeadAttentionConfig config{.query_width = 4, .heads = 2, .axis = 0, .dtype = DType::f64, .seed = 3};
  Random random(2);
  const Tensor x = random.tensor(DType::f64, {5, 2, 3, 4});
  Tensor out(DType::f64, x.shape()), moved_out(DType::f64, {2, 3, 5, 4});
  MultiHeadAttention(config).forward({.query = x}, out);
  config.axis = -2;
  MultiHeadAttention(config).forward({.query = x.view().move_axis(0, -2)}, moved_out);
  EXPECT_TRUE(same_bits(out.view().move_axis(0, -2), moved_out));
}

TEST(MultiHeadAttention, GlobalQueryIsTheProjectionOfTheMeanAndOfTheMeanOfProjections) {
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

TEST(MultiHeadAttention, MaskedMeanWithoutPositionsIsZeroAndItsSequenceEmpty) {
  const Tensor nobody(DType::boolean, {1, 3});
  Trial run({"nobody", {.query_width = 4, .heads = 2, .output = OutputProjection::none, .global_query = GlobalQuery::masked_mean, .dtype = DType::f64}, {1, 3, 4}});
  run.options.mask.attend_keys = nobody;
  run.backward();
  EXPECT_EQ(test::largest_magnitude(run.saved.query_mean), 0);
  EXPECT_EQ(test::largest_magnitude(run.out), 0);
  EXPECT_EQ(test::largest_magnitude(run.d_query), 0);
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

TEST(MultiHeadAttention, WrongSettingsAreSaidInNumbers) {
  const auto config_error = [](const MultiHeadAttentionConfig& config) { return error_message([&] { MultiHeadAttention layer(config); }); };
  EXPECT_EQ(config_error({.query_width = 10, .heads = 3}), "MultiHeadAttention: query_width 10 does not divide into 3 heads; give head_width");
  EXPECT_EQ(config_error({.query_width = 8, .heads = 4, .kv_heads = 3}), "MultiHeadAttention: 4 heads are not a multiple of 3 key/value heads");
  EXPECT_EQ(config_error({}), "MultiHeadAttention: query_width is 0; it must be at least 1");
  EXPECT_EQ(config_error({.query_width = 8, .heads = -2}), "MultiHeadAttention: heads is -2; it must be at least 1");
  EXPECT_EQ(config_error({.query_width = 8, .dropout = 1.5}), "MultiHeadAttention: dropout is 1.5; it must lie in [0,1]");

  const MultiHeadAttention layer({.query_width = 8, .heads = 2});
  const Tensor x(DType::f32, {2, 3, 8}), narrow(DType::f32, {2, 3, 6}), other_batch(DType::f32, {3, 3, 8}), longer(DType::f32, {2, 4, 8});
  Tensor out(DType::f32, {2, 3, 8});
  const auto forward_error = [&](const AttentionInput& input, TensorView target, const AttentionOptions& options = {}) {
    return error_message([&] { layer.forward(input, target, options); });
  };
  EXPECT_EQ(forward_error({.query = narrow}, out), "MultiHeadAttention.forward: query is [2,3,6]; its last extent must be query_width = 8");
  EXPECT_EQ(forward_error({.query = x, .key = other_batch}, out),
            "MultiHeadAttention.forward: key is [3,3,8]; but for the axis 1 and the width it must be shaped as query [2,3,8]");
  EXPECT_EQ(forward_error({.query = x, .key = longer, .value = x}, out),
            "MultiHeadAttention.forward: value is [2,3,8] and key [2,4,8]; they must have as many positions");
  EXPECT_EQ(forward_error({.query = x}, during_call(Tensor(DType::f32, {2, 3, 7}))),
            "MultiHeadAttention.forward: out is [2,3,7]; it must be [2,3,8]");
  const Tensor mask(DType::boolean, {5, 2, 2, 3, 3}), bias(DType::f32, {5, 1, 2, 3, 3});
  EXPECT_EQ(forward_error({.query = x}, out, {.mask = {.attend = mask}}),
            "MultiHeadAttention.forward: attend is [5,2,2,3,3]; it must be [T,S], or [B,1,T,S] to differ by sequence, [1,N,T,S] by head, "
            "[B,N,T,S] by both, where [*,N,T,S] is [2,2,3,3]");
  EXPECT_EQ(forward_error({.query = x}, out, {.bias = bias}),
            "MultiHeadAttention.forward: bias is [5,1,2,3,3]; it must be [T,S], or [B,1,T,S] to differ by sequence, [1,N,T,S] by head, "
            "[B,N,T,S] by both, where [*,N,T,S] is [2,2,3,3]");
  EXPECT_EQ(error_message([&] { layer.backward({}, out, {}); }), "MultiHeadAttention.backward: saved is empty; give it to forward first");
}

// As many sequences as heads: [2,3,3] could mean either, for masks as for biases.
TEST(MultiHeadAttention, ThreeDimensionsForPairsAreRefused) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .dropout = 0.5, .dtype = DType::f64});
  const Tensor x = Random(1).tensor(DType::f64, {2, 3, 4}), pairs(DType::boolean, {2, 3, 3}), bias = Random(2).tensor(DType::f64, {2, 3, 3});
  Tensor out(DType::f64, x.shape());
  const std::string rule = " is [2,3,3]; it must be [T,S], or [B,1,T,S] to differ by sequence, [1,N,T,S] by head, [B,N,T,S] by both, where "
                           "[*,N,T,S] is [2,2,3,3]";
  const auto refused = [&](const AttentionOptions& options) { return error_message([&] { layer.forward({.query = x}, out, options); }); };
  EXPECT_EQ(refused({.mask = {.attend = pairs}}), "MultiHeadAttention.forward: attend" + rule);
  EXPECT_EQ(refused({.mask = {.block = pairs}}), "MultiHeadAttention.forward: block" + rule);
  EXPECT_EQ(refused({.bias = bias}), "MultiHeadAttention.forward: bias" + rule);
  EXPECT_EQ(refused({.mode = Mode::training, .dropout_keep = pairs}), "MultiHeadAttention.forward: dropout_keep" + rule);
  EXPECT_EQ(refused({.bias = bias.view().unsqueeze(0)}), "");
  EXPECT_EQ(refused({.bias = bias.view().unsqueeze(1)}), "");
}

TEST(MultiHeadAttention, APassSavedByALayerOfAnotherStructureIsRefused) {
  const MultiHeadAttentionConfig config{.query_width = 4, .heads = 2};
  const MultiHeadAttention layer(config);
  const Tensor x = Random(1).tensor(DType::f32, {4, 4, 4});
  Tensor out(DType::f32, x.shape()), d_x(DType::f32, x.shape());
  const auto refused = [&](auto change) {
    MultiHeadAttentionConfig other = config;
    change(other);
    const MultiHeadAttention saver(other);
    MultiHeadAttention::Saved saved;
    Tensor its_out(other.dtype, saver.output_shape({.query = x}));
    saver.forward({.query = x}, its_out, {}, &saved);
    return error_message([&] { layer.backward(saved, out, {.query = d_x}); });
  };
  const std::string start = "MultiHeadAttention.backward: saved comes from a layer with ";
  EXPECT_EQ(refused([](auto& c) { c.gate = Gate::sigmoid; }), start + "a gate: yes; this one has no");
  EXPECT_EQ(refused([](auto& c) { c.output = OutputProjection::none; }), start + "an output projection: no; this one has yes");
  EXPECT_EQ(refused([](auto& c) { c.heads = 4; }), start + "heads 4; this one has 2");
  EXPECT_EQ(refused([](auto& c) { c.kv_heads = 1; }), start + "kv_heads 1; this one has 2");
  EXPECT_EQ(refused([](auto& c) { c.value_head_width = 1; }), start + "value_head_width 1; this one has 2");
  EXPECT_EQ(refused([](auto& c) { c.axis = 0; }), start + "axis 0; this one has -2");
  EXPECT_EQ(refused([](auto& c) { c.add_bias_kv = true; }), start + "add_bias_kv: yes; this one has no");
  EXPECT_EQ(refused([](auto& c) { c.add_zero_attn = true; }), start + "add_zero_attn: yes; this one has no");
  EXPECT_EQ(refused([](auto& c) { c.seed = 7, c.dropout = 0.5, c.bias = false; }), "");
}

TEST(MultiHeadAttention, DropoutInTrainingNeedsASeed) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .dropout = 0.5});
  const Tensor x = Random(1).tensor(DType::f32, {2, 3, 4}), keep(DType::boolean, {2, 2, 3, 3});
  Tensor out(DType::f32, x.shape());
  const auto message = [&](const AttentionOptions& options) { return error_message([&] { layer.forward({.query = x}, out, options); }); };
  EXPECT_EQ(message({.mode = Mode::training}),
            "MultiHeadAttention.forward: dropout in training needs dropout_seed, a new one for each step, or dropout_keep");
  EXPECT_EQ(message({.mode = Mode::training, .dropout_seed = 0}), "");
  EXPECT_EQ(message({.mode = Mode::training, .dropout_keep = keep}), "");
  EXPECT_EQ(message({.mode = Mode::evaluation}), "");
}

TEST(MultiHeadAttention, ParametersAreNotTrainedThroughCopiesThatAWorkspaceKeeps) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2});
  MultiHeadAttention grads = zeros_like(layer);
  const Tensor x = Random(1).tensor(DType::f32, {2, 3, 4});
  Tensor out(DType::f32, x.shape()), d_x(DType::f32, x.shape());
  const Workspace constant(Parameters::constant);
  EXPECT_EQ(error_message([&] { layer.forward({.query = x}, out, {.mode = Mode::training, .workspace = &constant}); }),
            "MultiHeadAttention.forward: training with a workspace of Parameters::constant, which keeps copies of the parameters of the first call; "
            "use Parameters::may_change");
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {.workspace = &constant}, &saved);
  EXPECT_EQ(error_message([&] { layer.backward(saved, out, {.parameters = &grads}); }),
            "MultiHeadAttention.backward: gradients of parameters that the workspace takes as constant (Parameters::constant); train with a "
            "Workspace of Parameters::may_change");
  EXPECT_EQ(error_message([&] { layer.backward(saved, out, {.query = d_x}); }), "");  // as for a frozen layer below one that is trained
  layer.forward({.query = x}, out, {}, &saved);
  EXPECT_NE(error_message([&] { layer.backward(saved, out, {.parameters = &grads}, {.workspace = &constant}); }), "");
}

TEST(MultiHeadAttention, WhatManySequencesAddToOneParameterIsRoundedOnce) {
  const MultiHeadAttention layer({.query_width = 1, .output = OutputProjection::none, .add_bias_kv = true, .dtype = DType::bf16, .seed = 1});
  constexpr std::int64_t kSequences = 1000;  // bfloat16 counts to 256
  const Tensor query(DType::bf16, {kSequences, 1, 1});
  Tensor out(DType::bf16, query.shape()), d_out(DType::bf16, query.shape());
  fill(d_out, 2);  // the weights of the two keys are 1/2 where the query is 0
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

TEST(MultiHeadAttention, AGradientOfTheBiasHasItsShapeWithAddedKeysToo) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .add_bias_kv = true});
  const Tensor x(DType::f32, {2, 3, 4}), bias(DType::f32, {3, 3});
  Tensor out(DType::f32, x.shape()), d_bias(DType::f32, {2, 2, 3, 3});
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {.bias = bias}, &saved);
  EXPECT_EQ(error_message([&] { layer.backward(saved, out, {.bias = d_bias}); }),
            "MultiHeadAttention.backward: the gradient of bias is [2,2,3,3]; it must be [3,3]");
}

TEST(MultiHeadAttention, GradientsShareNoMemoryWithEachOtherOrWithWhatIsRead) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2});
  const Tensor key(DType::f32, {2, 3, 4});
  Tensor x(DType::f32, {2, 3, 4}), out(DType::f32, x.shape()), d_x(DType::f32, x.shape()), bias(DType::f32, {3, 3});
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x, .key = key}, out, {.bias = bias}, &saved);
  const auto refused = [&](const MultiHeadAttention::Gradients& gradients) {
    return error_message([&] { layer.backward(saved, out, gradients); });
  };
  const std::string rule = "; outputs need memory of their own";
  EXPECT_EQ(refused({.sink = d_x.view().reshape({24}).slice(0, 0, 2)}), "MultiHeadAttention.backward: the gradient of sink is asked for, which forward was not given");
  EXPECT_EQ(refused({.bias = bias}), "MultiHeadAttention.backward: the gradient of bias overlaps bias" + rule);
  EXPECT_EQ(refused({.bias = x.view().reshape({24}).slice(0, 0, 9).reshape({3, 3})}),
            "MultiHeadAttention.backward: the gradient of bias overlaps query" + rule);
  EXPECT_EQ(refused({.query = d_x, .bias = d_x.view().reshape({24}).slice(0, 0, 9).reshape({3, 3})}),
            "MultiHeadAttention.backward: the gradient of bias overlaps the gradient of query" + rule);
}

TEST(MultiHeadAttention, SinksAreCheckedAndTheirGradientsHaveTheirShapeAndDType) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .dtype = DType::bf16});
  Tensor x(DType::bf16, {2, 3, 4}), out(DType::bf16, x.shape()), sink(DType::f32, {2}), wrong(DType::f32, {3}), narrow(DType::bf16, {2});
  EXPECT_THAT(error_message([&] { layer.forward({.query = x}, out, {.sink = wrong}); }), testing::HasSubstr("sink is [3]"));
  EXPECT_THAT(error_message([&] { layer.forward({.query = x}, out, {.sink = out.view().reshape({24}).slice(0, 0, 2)}); }),
              testing::HasSubstr("out overlaps sink"));
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {.sink = sink}, &saved);
  EXPECT_THAT(error_message([&] { layer.backward(saved, out, {.sink = narrow}); }), testing::HasSubstr("the gradient of sink is bfloat16; it must be float32"));
  const MultiHeadAttention uniform({.query_width = 4, .heads = 2, .empty_rows = EmptyRows::uniform, .dtype = DType::bf16});
  EXPECT_THAT(error_message([&] { uniform.forward({.query = x}, out, {.sink = sink}); }), testing::HasSubstr("sink with empty_rows uniform"));
}

TEST(MultiHeadAttention, TheOutputSharesNoMemoryWithMasksOrParameters) {
  MultiHeadAttention layer({.query_width = 4, .heads = 2});
  const Tensor x(DType::f32, {4, 4});
  EXPECT_EQ(error_message([&] { layer.forward({.query = x}, layer.output.weight); }),
            "MultiHeadAttention.forward: out overlaps the parameter output.weight; outputs need memory of their own");
  Tensor out(DType::f32, {4, 4});
  const ConstTensorView mask(out.view().data(), DType::boolean, {4, 4});
  EXPECT_EQ(error_message([&] { layer.forward({.query = x}, out, {.mask = {.attend = mask}}); }),
            "MultiHeadAttention.forward: out overlaps attend; outputs need memory of their own");
}

TEST(MultiHeadAttention, GradientsOfAnotherStructureAreRefusedBeforeAnythingIsWritten) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .gate = Gate::sigmoid});
  const Tensor x(DType::f32, {3, 4});
  Tensor out(DType::f32, x.shape()), d_x(DType::f32, x.shape());
  fill(d_x, 7);
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {}, &saved);
  MultiHeadAttention grads({.query_width = 4, .heads = 2});
  const MultiHeadAttention before = grads;
  EXPECT_EQ(error_message([&] { layer.backward(saved, out, {.query = d_x, .parameters = &grads}); }),
            "MultiHeadAttention.backward: grads->gate.weight is missing");
  EXPECT_TRUE(same_bits(grads.output.weight, before.output.weight));
  EXPECT_EQ(test::to_doubles(d_x)[0], 7);
}

// Counts its calls; in use by nothing that was not given it.
class Counter final : public Executor {
 public:
  int num_threads() const override { return 2; }
  void run(std::int64_t count, const std::function<void(std::int64_t)>& task) override {
    ++calls;
    for (std::int64_t i = 0; i < count; ++i) task(i);
  }
  int calls = 0;
};

TEST(MultiHeadAttention, BackwardRunsOnItsOwnExecutorAndNotOnThatOfForward) {
  const MultiHeadAttention layer({.query_width = 64, .heads = 8});
  const Tensor x = Random(1).tensor(DType::f32, {8, 128, 64});  // enough work to be given to threads at all
  Tensor out(DType::f32, x.shape()), d_x(DType::f32, x.shape());
  Counter of_backward;
  MultiHeadAttention::Saved saved;
  {
    Counter of_forward;
    layer.forward({.query = x}, out, {.executor = &of_forward}, &saved);
    EXPECT_GT(of_forward.calls, 0);
  }
  EXPECT_EQ(saved.sdpa.executor, nullptr);
  layer.backward(saved, out, {.query = d_x}, {.executor = &of_backward});
  EXPECT_GT(of_backward.calls, 0);
}

TEST(MultiHeadAttention, WithAddedKeysAWrongBiasOrMaskIsSaidAsWithoutThem) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .add_zero_attn = true});
  const Tensor x(DType::f32, {3, 4}), bias(DType::f32, {3, 5}), lengths = Tensor::of<std::int64_t>({}, {9});
  Tensor out(DType::f32, x.shape());
  EXPECT_EQ(error_message([&] { layer.forward({.query = x}, out, {.bias = bias}); }),
            "MultiHeadAttention.forward: bias is [3,5]; it must be [T,S], or [*,N,T,S] with extents of 1 where it is shared, where [*,N,T,S] is "
            "[2,3,3]");
  EXPECT_EQ(error_message([&] { layer.forward({.query = x}, out, {.mask = {.key_lengths = lengths}}); }),
            "MultiHeadAttention.forward: a key length is 9; it must lie in [0,S] = [0,3]");
}

TEST(MultiHeadAttention, WidthsWhoseProductIsNoNumberAreRefused) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  EXPECT_EQ(error_message([&] { completed({.query_width = 8, .heads = kMany, .head_width = kMany}); }),
            "the extents [1099511627776,1099511627776] have a product beyond 2^63 - 1");
}

TEST(MultiHeadAttention, AForwardPassThatFailsSavesNothing) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2});
  const Tensor x = Random(1).tensor(DType::f32, {2, 3, 4});
  Tensor out(DType::f32, {2, 3, 4}), lengths(DType::i64, {2});
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {}, &saved);
  EXPECT_TRUE(saved.lse);
  lengths.data<std::int64_t>()[1] = 4;
  EXPECT_THROW(layer.forward({.query = x}, out, {.mask = {.key_lengths = lengths}}, &saved), Error);
  EXPECT_FALSE(saved.lse);
}

}  // namespace
}  // namespace polyhead::nn
