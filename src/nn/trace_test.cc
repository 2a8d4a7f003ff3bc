#include "polyhead/nn/trace.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "nn/attention_shapes.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::near;
using test::Random;
using test::same_bits;
using test::to_doubles;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<TraceKind> kinds(const std::vector<TraceStep>& steps) {
  std::vector<TraceKind> list;
  for (const TraceStep& step : steps) list.push_back(step.kind);
  return list;
}

const TraceStep& find(const std::vector<TraceStep>& steps, TraceKind kind) {
  for (const TraceStep& step : steps) {
    if (step.kind == kind) return step;
  }
  throw std::runtime_error("no step of kind " + std::to_string(static_cast<int>(kind)));
}

// A layer with its inputs and options.
struct Problem {
  MultiHeadAttentionConfig config{.query_width = 6, .heads = 2, .dtype = DType::f64, .seed = 7};
  Shape query{2, 3, 6};
  Shape key, value, bias;
  Mask mask;
  Mode mode = Mode::evaluation;

  std::vector<Tensor> memory;

  std::vector<TraceStep> run(Tensor* out = nullptr) {
    Random random(5);
    memory.clear();
    memory.reserve(4);
    const auto view = [&](const Shape& shape) -> ConstTensorView {
      if (shape.empty()) return {};
      return memory.emplace_back(random.tensor(config.dtype, shape)).view();
    };
    const MultiHeadAttention layer(config);
    const AttentionInput input{.query = view(query), .key = view(key), .value = view(value)};
    const AttentionOptions options{.mask = mask, .bias = view(bias), .mode = mode, .dropout_seed = 3};
    if (out) {
      *out = Tensor(config.dtype, layer.output_shape(input));
      layer.forward(input, *out, options);
    }
    return trace(layer, input, options);
  }
};

Tensor lengths(std::initializer_list<std::int64_t> values) { return Tensor::of<std::int64_t>({static_cast<std::int64_t>(values.size())}, values); }

TEST(Trace, HasTheShapesOfTheTutorialWithHeadsBesideTheBatch) {
  Problem p;
  p.config = {.query_width = 100, .heads = 5, .bias = false, .output_bias = false, .seed = 1};
  p.query = {2, 10, 100};
  const std::vector<TraceStep> steps = p.run();
  using enum TraceKind;
  EXPECT_THAT(kinds(steps), ElementsAre(query, projection_q, projection_k, projection_v, split_q, split_k, split_v, scores, scale, softmax, weighted_values,
                                        merge, output_projection));
  EXPECT_EQ(find(steps, TraceKind::query).shape(), Shape({2, 10, 100}));
  EXPECT_EQ(find(steps, TraceKind::projection_q).shape(), Shape({2, 10, 100}));
  for (const TraceKind kind : {split_q, weighted_values}) {
    EXPECT_EQ(find(steps, kind).shape(), Shape({2, 5, 10, 20}));
    EXPECT_EQ(find(steps, kind).letters, kind == split_q ? "[B,N,T,H]" : "[B,N,T,V]");
  }
  EXPECT_EQ(find(steps, TraceKind::softmax).shape(), Shape({2, 5, 10, 10}));
  EXPECT_EQ(find(steps, TraceKind::merge).shape(), Shape({2, 10, 100}));
  EXPECT_EQ(find(steps, TraceKind::output_projection).shape(), Shape({2, 10, 100}));
}

// Returns layers that each have one optional setting, layers that have several of these settings, and calls with masks and biases.
std::vector<Problem> sweep() {
  std::vector<Problem> list;
  const auto add = [&](const auto& change) { change(list.emplace_back()); };
  static const Tensor per_sequence = lengths({2, 0});
  static const Tensor keys = Tensor::of<bool>({2, 3}, {true, false, true, false, true, true});
  add([](Problem&) {});
  add([](Problem& p) { p.key = {2, 4, 5}, p.config.key_width = 5; });
  add([](Problem& p) { p.key = {2, 4, 5}, p.value = {2, 4, 3}, p.config.key_width = 5, p.config.value_width = 3, p.config.value_head_width = 4; });
  add([](Problem& p) { p.config.kv_heads = 1, p.config.output = OutputProjection::none; });
  add([](Problem& p) { p.config.heads = 6, p.config.kv_heads = 2, p.config.scale = 0.3; });
  add([](Problem& p) { p.config.scale = 1.0, p.config.softcap = 0.5; });
  add([](Problem& p) { p.mask.causal = Causal::top_left(), p.bias = {1, 2, 3, 3}; });
  add([](Problem& p) { p.mask.window = {.left = 1, .right = 0}, p.config.gate = Gate::sigmoid; });
  for (const EmptyRows rule : {EmptyRows::zero, EmptyRows::uniform, EmptyRows::unmasked}) {
    add([&](Problem& p) { p.mask.key_lengths = per_sequence, p.config.empty_rows = rule; });
  }
  add([](Problem& p) { p.config.add_bias_kv = true, p.config.add_zero_attn = true, p.mask.attend_keys = keys, p.bias = {3, 3}; });
  add([](Problem& p) { p.config.add_zero_attn = true; });
  add([](Problem& p) { p.config.add_bias_kv = true, p.mask.block_keys = keys; });
  for (const Gate gate : {Gate::none, Gate::sigmoid}) {
    add([&](Problem& p) { p.config.global_query = GlobalQuery::mean, p.config.gate = gate; });
    add([&](Problem& p) { p.config.global_query = GlobalQuery::masked_mean, p.config.gate = gate, p.mask.attend_keys = keys; });
  }
  add([](Problem& p) { p.query = {2, 3, 4, 6}, p.config.axis = -3, p.bias = {2, 1, 2, 3, 3}, p.config.gate = Gate::sigmoid; });
  add([](Problem& p) { p.config.sink = true, p.mask.key_lengths = per_sequence; });
  add([](Problem& p) { p.query = {3, 6}; });
  add([](Problem& p) { p.config.dropout = 0.5, p.mode = Mode::training, p.mask.causal = Causal::top_left(); });
  add([](Problem& p) { p.query = {2, 0, 6}; });
  add([](Problem& p) { p.query = {0, 3, 6}; });
  add([](Problem& p) { p.query = {1, 1, 6}, p.mask.causal = Causal::top_left(); });
  return list;
}

TEST(Trace, EndsWithTheBitsThatForwardWrites) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    int number = 0;
    for (Problem& p : sweep()) {
      SCOPED_TRACE(testing::Message() << "problem " << number++ << " in " << info(dtype).name);
      p.config.dtype = dtype;
      Tensor out;
      const std::vector<TraceStep> steps = p.run(&out);
      EXPECT_TRUE(same_bits(steps.back().value, out));
    }
  }
}

// Computes x W^T + b over the last extent, as the definition says.
Tensor linear(ConstTensorView x, const Linear& map) {
  Shape shape = x.shape();
  shape[-1] = map.out_width();
  const std::vector<double> in = to_doubles(x), weight = to_doubles(map.weight), bias = map.bias ? to_doubles(map.bias) : std::vector<double>(weight.size());
  const auto width = static_cast<std::size_t>(map.in_width()), features = static_cast<std::size_t>(map.out_width());
  std::vector<double> result(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = bias[i % features];
    for (std::size_t j = 0; j < width; ++j) result[i] += weight[(i % features) * width + j] * in[i / features * width + j];
  }
  return Tensor::of<double>(shape, std::span<const double>(result));
}

// Multiplies heads: [*,N,T,C] = a [*,N,T,R] times b [*,K,R,C]; if `transposed`, b is [*,K,C,R]. Head n of a is multiplied by head n / (N/K) of b.
Tensor multiply_heads(ConstTensorView a, ConstTensorView b, bool transposed) {
  if (transposed) b = b.transpose(-1, -2);
  Shape shape = a.shape();
  shape[-1] = b.extent(-1);
  const std::int64_t heads = a.extent(-3), shared = heads / b.extent(-3), rows = a.extent(-2), inner = a.extent(-1), columns = b.extent(-1);
  const std::vector<double> x = to_doubles(a), y = to_doubles(b);
  std::vector<double> result;
  for (std::int64_t bn = 0; bn < (rows * inner == 0 ? numel(shape.first(shape.size() - 2)) : a.numel() / (rows * inner)); ++bn) {
    const std::int64_t other = bn / heads * (heads / shared) + bn % heads / shared;
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t c = 0; c < columns; ++c) {
        double sum = 0;
        for (std::int64_t r = 0; r < inner; ++r) {
          sum += x[static_cast<std::size_t>((bn * rows + t) * inner + r)] * y[static_cast<std::size_t>((other * inner + r) * columns + c)];
        }
        result.push_back(sum);
      }
    }
  }
  return Tensor::of<double>(shape, std::span<const double>(result));
}

// Computes the values of every step from the values of earlier steps, and compares them with the trace.
TEST(Trace, StepsFollowFromEachOther) {
  int number = 0;
  for (Problem& p : sweep()) {
    SCOPED_TRACE(testing::Message() << "problem " << number++);
    const std::vector<TraceStep> steps = p.run();
    const MultiHeadAttention layer(p.config);
    const MultiHeadAttentionConfig& c = layer.config;
    std::map<TraceKind, ConstTensorView> at;
    for (const TraceStep& step : steps) at[step.kind] = step.value;
    constexpr double kTolerance = 1e-12;

    const ConstTensorView query = at[TraceKind::query], key = at[TraceKind::key] ? at[TraceKind::key] : query, value = at[TraceKind::value] ? at[TraceKind::value] : key;
    const bool global = c.global_query != GlobalQuery::off;
    ASSERT_EQ(static_cast<bool>(at[TraceKind::mean_query]), global);
    EXPECT_TRUE(near(at[TraceKind::projection_q], linear(global ? at[TraceKind::mean_query] : query, layer.q), kTolerance));
    EXPECT_TRUE(near(at[TraceKind::projection_k], linear(key, layer.k), kTolerance));
    EXPECT_TRUE(near(at[TraceKind::projection_v], linear(value, layer.v), kTolerance));
    ASSERT_EQ(static_cast<bool>(at[TraceKind::added_key]), c.add_bias_kv || c.add_zero_attn);
    const int axis = c.axis + query.rank();
    const ConstTensorView k = at[TraceKind::added_key] ? at[TraceKind::added_key] : at[TraceKind::projection_k], v = at[TraceKind::added_key] ? at[TraceKind::added_value] : at[TraceKind::projection_v];
    EXPECT_TRUE(same_bits(at[TraceKind::split_q], split_heads(at[TraceKind::projection_q], axis, c.heads)));
    EXPECT_TRUE(same_bits(at[TraceKind::split_k], split_heads(k, axis, c.kv_heads)));
    EXPECT_TRUE(same_bits(at[TraceKind::split_v], split_heads(v, axis, c.kv_heads)));

    EXPECT_TRUE(near(at[TraceKind::scores], multiply_heads(at[TraceKind::split_q], at[TraceKind::split_k], true), kTolerance));
    std::vector<double> scores = to_doubles(at[TraceKind::scores]);
    const double scale = c.scale.value_or(1 / std::sqrt(static_cast<double>(c.head_width)));
    for (double& x : scores) x *= scale;
    const auto expect_scores = [&](ConstTensorView stage) {
      const Tensor expected = Tensor::of<double>(at[TraceKind::scores].shape(), std::span<const double>(scores));
      EXPECT_TRUE(near(stage, expected, kTolerance));
      scores = to_doubles(stage);
    };
    ASSERT_EQ(static_cast<bool>(at[TraceKind::scale]), scale != 1);
    if (at[TraceKind::scale]) expect_scores(at[TraceKind::scale]);
    ASSERT_EQ(static_cast<bool>(at[TraceKind::softcap]), c.softcap > 0);
    if (at[TraceKind::softcap]) {
      for (double& x : scores) x = c.softcap * std::tanh(x / c.softcap);
      expect_scores(at[TraceKind::softcap]);
    }
    ASSERT_EQ(static_cast<bool>(at[TraceKind::bias]), !p.bias.empty());
    if (at[TraceKind::bias]) {
      const std::int64_t keys = attention_shapes("test", c, {.query = query, .key = at[TraceKind::key]}).keys;
      const Tensor before = Tensor::of<double>(at[TraceKind::scores].shape(), std::span<const double>(scores));
      Tensor added(DType::f64, before.shape());
      Shape own = before.shape();
      own[-1] = keys;
      copy(p.memory.back().view().expand(own), added.view().slice(-1, 0, keys));  // the keys that the layer adds have no bias
      const std::vector<double> bias = to_doubles(added);
      for (std::size_t i = 0; i < scores.size(); ++i) scores[i] += bias[i];
      expect_scores(at[TraceKind::bias]);
    }
    if (at[TraceKind::mask]) {  // masked scores must be -inf, and other scores must not change; a row without a key follows the layer's empty_rows
      const std::vector<double> masked = to_doubles(at[TraceKind::mask]);
      const auto keys = static_cast<std::size_t>(at[TraceKind::mask].extent(-1));
      std::size_t gone = 0;
      for (std::size_t i = 0; i < scores.size(); ++i) {
        const bool uniform_row = c.empty_rows == EmptyRows::uniform && i / keys * keys >= scores.size() / 2;  // all keys of the second sequence are masked
        if (masked[i] == -INFINITY) ++gone;
        EXPECT_TRUE(masked[i] == -INFINITY || std::abs(masked[i] - (uniform_row ? 0 : scores[i])) < kTolerance) << i;
      }
      EXPECT_EQ(gone > 0, p.query[-2] > 1);
      scores = masked;
    }

    const std::vector<double> weights = to_doubles(at[TraceKind::softmax]);
    const auto keys = static_cast<std::size_t>(at[TraceKind::softmax].extent(-1));
    for (std::size_t row = 0; keys > 0 && row < weights.size() / keys; ++row) {
      const double sink = c.sink ? std::exp(0) : 0;  // the sink logits of a new layer are 0
      double sum = sink, total = 0;
      for (std::size_t s = 0; s < keys; ++s) {
        sum += std::exp(scores[row * keys + s]);
        total += weights[row * keys + s];
      }
      for (std::size_t s = 0; s < keys; ++s) EXPECT_NEAR(weights[row * keys + s], sum == 0 ? 0 : std::exp(scores[row * keys + s]) / sum, kTolerance);
      EXPECT_NEAR(total, sum == 0 ? 0 : 1 - sink / sum, kTolerance);
    }
    ASSERT_EQ(static_cast<bool>(at[TraceKind::dropout]), p.mode == Mode::training);
    if (at[TraceKind::dropout]) {
      const std::vector<double> kept = to_doubles(at[TraceKind::dropout]);
      std::size_t dropped = 0;
      for (std::size_t i = 0; i < kept.size(); ++i) {
        EXPECT_TRUE(kept[i] == 0 || std::abs(kept[i] - 2 * weights[i]) < kTolerance);
        dropped += weights[i] > 0 && kept[i] == 0;
      }
      EXPECT_GT(dropped, 0U);
    }
    EXPECT_TRUE(near(at[TraceKind::weighted_values], multiply_heads(at[TraceKind::dropout] ? at[TraceKind::dropout] : at[TraceKind::softmax], at[TraceKind::split_v], false), kTolerance));
    EXPECT_TRUE(same_bits(at[TraceKind::weighted_values], split_heads(at[TraceKind::merge], axis, c.heads)));
    ASSERT_EQ(static_cast<bool>(at[TraceKind::gate]), c.gate == Gate::sigmoid);
    ConstTensorView merged = at[TraceKind::merge];
    if (at[TraceKind::gate]) {
      const Tensor before = linear(query, layer.gate);
      std::vector<double> gate = to_doubles(before), product = to_doubles(merged.expand(before.shape()));
      for (std::size_t i = 0; i < gate.size(); ++i) product[i] *= gate[i] = 1 / (1 + std::exp(-gate[i]));
      EXPECT_TRUE(near(at[TraceKind::gate], Tensor::of<double>(before.shape(), std::span<const double>(gate)), kTolerance));
      EXPECT_TRUE(near(at[TraceKind::gated], Tensor::of<double>(before.shape(), std::span<const double>(product)), kTolerance));
      merged = at[TraceKind::gated];
    }
    ASSERT_EQ(static_cast<bool>(at[TraceKind::output_projection]), c.output == OutputProjection::linear);
    if (at[TraceKind::output_projection]) {
      EXPECT_TRUE(near(at[TraceKind::output_projection], linear(merged, layer.output), kTolerance));
    }
  }
}

TEST(Trace, LettersAreAsManyAsExtents) {
  for (Problem& p : sweep()) {
    for (const TraceStep& step : p.run()) {
      EXPECT_EQ(static_cast<int>(std::count(step.letters.begin(), step.letters.end(), ',')) + 1, step.shape().size()) << step.letters;
    }
  }
}

TEST(Trace, CountsThePairsOfAMaskAndTheRowsWithoutAKey) {
  const Tensor none = lengths({0, 2});
  Problem p;
  p.mask.key_lengths = none;
  const std::vector<TraceStep> steps = p.run();
  const MaskCounts counts = *find(steps, TraceKind::mask).mask;
  EXPECT_EQ(counts.pairs, 18);
  EXPECT_EQ(counts.attended, 6);
  EXPECT_EQ(counts.empty_rows, 3);
  EXPECT_TRUE(counts.shared_by_heads);
}

// The step `bias` shows the bias without the mask. Its distances must still follow from the mask's diagonals and documents.
TEST(Trace, ARelativeBiasKeepsItsDistancesWithoutTheMask) {
  const MultiHeadAttention layer({.query_width = 8, .heads = 2, .dtype = DType::f64, .seed = 2});
  const Tensor x = test::Random(1).tensor(DType::f64, {2, 5, 8}), slopes = Tensor::of<double>({2}, {0.5, 2}),
               documents = Tensor::of<std::int64_t>({3}, {0, 2, 5}), offsets = Tensor::of<std::int64_t>({2}, {1, -2});
  struct Given {
    Mask mask;
    std::function<double(int b, int t, int s)> distance;  // the distance of key s from query t; NaN if they are in different documents
  };
  const Given all[] = {{{.causal = Causal::offset(1), .query_offsets = documents},
                        [](int, int t, int s) { return (t < 2) == (s < 2) ? s - t - 1 : std::nan(""); }},
                       {{.window = {.left = 1, .diagonal = Diagonal::offset(2)}}, [](int, int t, int s) { return s - t - 2.0; }},
                       {{.causal = Causal::top_left(), .diagonal_offsets = offsets}, [](int b, int t, int s) { return s - t - (b == 0 ? 1.0 : -2.0); }},
                       {{.diagonal_offsets = offsets}, [](int b, int t, int s) { return s - t - (b == 0 ? 1.0 : -2.0); }}};
  for (const Given& given : all) {
    std::map<TraceKind, ConstTensorView> at;
    const std::vector<TraceStep> steps = trace(layer, {.query = x}, {.mask = given.mask, .relative_bias = {.slopes = slopes}});
    for (const TraceStep& step : steps) at[step.kind] = step.value;
    const std::vector<double> before = to_doubles(at[TraceKind::scale]), after = to_doubles(at[TraceKind::bias]), masked = to_doubles(at[TraceKind::mask]);
    ASSERT_EQ(after.size(), 100U);
    for (std::size_t i = 0; i < after.size(); ++i) {
      const int pair = static_cast<int>(i);
      const double distance = given.distance(pair / 50, pair / 5 % 5, pair % 5), wanted = before[i] - (i / 25 % 2 == 0 ? 0.5 : 2.0) * std::abs(distance);
      if (std::isnan(distance)) continue;
      EXPECT_NEAR(after[i], wanted, 1e-13) << i;
      EXPECT_TRUE(masked[i] == after[i] || masked[i] == -INFINITY) << i;
    }
  }
}

TEST(Trace, ShowsQAndKBeforeAndAfterRotaryPositions) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .dtype = DType::f64, .seed = 3});
  Random random(1);
  const Tensor x = random.tensor(DType::f64, {2, 3, 4}), cos = random.tensor(DType::f64, {3, 1}), sin = random.tensor(DType::f64, {3, 1});
  const std::vector<TraceStep> steps = trace(layer, {.query = x}, {.rotary = {.cos = cos, .sin = sin}});
  for (const auto& [before, after, split] : {std::tuple{TraceKind::projection_q, TraceKind::rotary_q, TraceKind::split_q},
                                             std::tuple{TraceKind::projection_k, TraceKind::rotary_k, TraceKind::split_k}}) {
    Tensor rotated = Tensor::copy_of(split_heads(find(steps, before).value.view(), 1, 2));
    rotate(cos, sin, RotaryOrder::halves, Rotation::forward, rotated);
    EXPECT_TRUE(same_bits(rotated, find(steps, split).value));
    EXPECT_TRUE(same_bits(split_heads(find(steps, after).value.view(), 1, 2), rotated));
  }
}

TEST(Trace, ValuesAreCopies) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .seed = 1});
  Tensor x(DType::f32, {2, 3, 4});
  const std::vector<TraceStep> steps = trace(layer, {.query = x});
  fill(x, 1);
  EXPECT_TRUE(near(find(steps, TraceKind::query).value, Tensor(DType::f32, {2, 3, 4}), 0));
}

TEST(Trace, RefusesWhatForwardRefuses) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .seed = 1});
  const Tensor x(DType::f32, {2, 3, 5});
  EXPECT_THAT(test::error_message([&] { trace(layer, {.query = x}); }), AllOf(HasSubstr("[2,3,5]"), HasSubstr("query_width = 4")));
}

}  // namespace
}  // namespace polyhead::nn
