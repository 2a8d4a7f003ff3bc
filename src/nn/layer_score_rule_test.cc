// Compares a layer with a score rule with the same layer without the rule; the numbers that the rule adds are then given as a bias.
#include <gmock/gmock.h>

#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/nn/trace.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::near;
using test::Random;
using testing::HasSubstr;

// The rule: the new score is score + (factor[n] + 0.25 b) (s - t) for head n of sequence b. `data` points to the factors, which are float64 and have gradients.
template <class T>
void add_distances(const ScoreTile& tile, const double* factors) {
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    for (std::int64_t j = 0; j < tile.keys; ++j) {
      const std::int64_t distance = tile.first_key + j - tile.first_query - i;
      static_cast<T*>(tile.scores)[i * tile.row_stride + j] += static_cast<T>(factors[tile.head] * static_cast<double>(distance) + 0.25 * static_cast<double>(tile.batch * distance));
    }
  }
}
template <class T>
void sum_distances(const ScoreTile& tile, double* sums) {
  for (std::int64_t i = 0; i < tile.rows && sums != nullptr; ++i) {
    for (std::int64_t j = 0; j < tile.keys; ++j)
      *sums += static_cast<double>(static_cast<const T*>(tile.scores)[i * tile.row_stride + j]) * static_cast<double>(tile.first_key + j - tile.first_query - i);
  }
}

ScoreRule distance_rule(const std::vector<double>& factors) {
  ScoreRule rule;
  rule.forward = [](const ScoreTile& tile, const void* data) {
    const auto* of_heads = static_cast<const double*>(data);
    tile.float64 ? add_distances<double>(tile, of_heads) : add_distances<float>(tile, of_heads);
  };
  rule.backward = [](const ScoreTile& tile, const void*, double* sums, const void*) { tile.float64 ? sum_distances<double>(tile, sums) : sum_distances<float>(tile, sums); };
  rule.data = factors.data(), rule.gradient_count = 1;
  return rule;
}

Tensor distance_bias(const std::vector<double>& factors, std::int64_t batch, std::int64_t length, DType dtype) {
  const auto heads = static_cast<std::int64_t>(factors.size());
  Tensor bias(DType::f64, {batch, heads, length, length});
  double* at = bias.data<double>();
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t n = 0; n < heads; ++n) {
      for (std::int64_t t = 0; t < length; ++t) {
        for (std::int64_t s = 0; s < length; ++s) *at++ = (factors[static_cast<std::size_t>(n)] + 0.25 * static_cast<double>(b)) * static_cast<double>(s - t);
      }
    }
  }
  return Tensor::copy_of(bias, dtype);
}

const std::vector<double> kFactors{0.3, -0.2, 0.1, 0.05};

TEST(LayerScoreRules, GiveTheResultsOfABias) {
  Random random(1);
  const MultiHeadAttention layer({.query_width = 16, .heads = 4, .kv_heads = 2, .qk_norm = true, .gate = Gate::sigmoid, .dtype = DType::f64, .seed = 3});
  const Tensor x = random.tensor(DType::f64, {3, 9, 16}), d_out = random.tensor(DType::f64, x.shape()), bias = distance_bias(kFactors, 3, 9, DType::f64);
  const Mask mask{.causal = Causal::top_left()};
  Tensor out(DType::f64, x.shape()), expected(DType::f64, x.shape()), d_x(DType::f64, x.shape()), expected_d_x(DType::f64, x.shape());
  Tensor d_factors(DType::f64, {4, 1}), d_bias(DType::f64, bias.shape());
  MultiHeadAttention gradients = zeros_like(layer), expected_gradients = zeros_like(layer);
  MultiHeadAttention::Saved saved, with_bias;
  layer.forward({.query = x}, out, {.mask = mask, .score_rule = distance_rule(kFactors)}, &saved);
  layer.forward({.query = x}, expected, {.mask = mask, .bias = bias}, &with_bias);
  EXPECT_TRUE(near(out, Tensor::copy_of(expected), 1e-12));
  layer.backward(saved, d_out, {.query = d_x, .score_rule = d_factors, .parameters = &gradients});
  layer.backward(with_bias, d_out, {.query = expected_d_x, .bias = d_bias, .parameters = &expected_gradients});
  EXPECT_TRUE(near(d_x, Tensor::copy_of(expected_d_x), 1e-11));
  EXPECT_TRUE(near(gradients.q.weight, Tensor::copy_of(expected_gradients.q.weight), 1e-11));
  EXPECT_TRUE(near(gradients.k.weight, Tensor::copy_of(expected_gradients.k.weight), 1e-11));
  EXPECT_GT(test::largest_magnitude(d_factors), 1e-3);
  for (std::int64_t n = 0; n < 4; ++n) {
    double wanted = 0;
    for (std::int64_t b = 0; b < 3; ++b) {
      for (std::int64_t t = 0; t < 9; ++t) {
        for (std::int64_t s = 0; s < 9; ++s) wanted += d_bias.data<double>()[((b * 4 + n) * 9 + t) * 9 + s] * static_cast<double>(s - t);
      }
    }
    EXPECT_NEAR(d_factors.data<double>()[n], wanted, 1e-11);
  }
  Tensor in_evaluation(DType::f64, x.shape());
  layer.forward({.query = x}, in_evaluation, {.mask = mask, .score_rule = distance_rule(kFactors)});
  EXPECT_TRUE(test::same_bits(in_evaluation, out));
}

// In evaluation a layer computes a large batch a few sequences at a time. A score rule must still see each sequence's index in the whole batch.
TEST(LayerScoreRules, SeeTheirSequenceInALargeBatch) {
  Random random(2);
  const MultiHeadAttention layer({.query_width = 64, .heads = 4, .seed = 3});
  const Tensor x = random.tensor(DType::f32, {100, 40, 64});
  LimitedThreads one(1);
  Tensor out(DType::f32, x.shape()), expected(DType::f32, x.shape());
  layer.forward({.query = x}, out, {.score_rule = distance_rule(kFactors), .executor = &one});
  const Tensor bias = distance_bias(kFactors, 100, 40, DType::f32);
  layer.forward({.query = x}, expected, {.bias = bias, .executor = &one});
  EXPECT_TRUE(near(out, Tensor::copy_of(expected), 1e-4));
}

TEST(LayerScoreRules, AreRefusedByNameWhereTheyHaveNoMeaning) {
  Random random(3);
  const MultiHeadAttention layer({.query_width = 8, .heads = 2, .seed = 1}), global({.query_width = 8, .heads = 2, .global_query = GlobalQuery::mean, .seed = 1});
  const Tensor x = random.tensor(DType::f32, {1, 3, 8});
  Tensor out(DType::f32, x.shape()), d_factors(DType::f64, {2, 1});
  KeyValueCache cache({.sequences = 1, .kv_heads = 2, .capacity = 8, .head_width = 4});
  EXPECT_THAT(error_message([&] { layer.forward({.query = x}, out, {.score_rule = distance_rule(kFactors), .cache = &cache}); }), HasSubstr("score_rule cannot be combined with a cache"));
  Tensor one(DType::f32, {1, 1, 8});
  EXPECT_THAT(error_message([&] { global.forward({.query = x}, one, {.score_rule = distance_rule(kFactors)}); }), HasSubstr("score_rule cannot be combined with a global query"));
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {}, &saved);
  EXPECT_THAT(error_message([&] { layer.backward(saved, x, {.score_rule = d_factors}); }), HasSubstr("the gradient of score_rule is requested, but forward() was called without this input"));
  layer.forward({.query = x}, out, {.score_rule = distance_rule(kFactors)}, &saved);
  Tensor wrong(DType::f32, {2, 1});
  EXPECT_THAT(error_message([&] { layer.backward(saved, x, {.score_rule = wrong}); }), HasSubstr("the gradient of score_rule"));
  EXPECT_THAT(error_message([&] { (void)trace(layer, {.query = x}, {.score_rule = distance_rule(kFactors)}); }), HasSubstr("trace: score_rule is given"));
}

// A backward pass that is refused must not change the gradients of the parameters.
TEST(LayerScoreRules, ARefusedBackwardPassLeavesTheGradientsAsTheyAre) {
  Random random(4);
  const MultiHeadAttention layer({.query_width = 8, .heads = 2, .dtype = DType::f64, .seed = 1});
  MultiHeadAttention gradients = zeros_like(layer);
  const Tensor x = random.tensor(DType::f64, {1, 3, 8}), d_p = random.tensor(DType::f64, {1, 3, 3});
  Tensor out(DType::f64, x.shape());
  const auto message = [&](const ScoreRule& rule, std::span<const AttentionWeightsGradient> of_weights) {
    MultiHeadAttention::Saved saved;
    layer.forward({.query = x}, out, {.score_rule = rule}, &saved);
    return error_message([&] { layer.backward(saved, x, {.parameters = &gradients, .parameters_write = Write::add, .attention_weights = of_weights}); });
  };
  ScoreRule forward_only = distance_rule(kFactors);
  forward_only.backward = nullptr;
  const AttentionWeightsGradient of_weights[] = {{.head = 1, .d_p = d_p}};
  EXPECT_THAT(message(forward_only, {}), HasSubstr("MultiHeadAttention.backward: score_rule has no backward function"));
  EXPECT_THAT(message(distance_rule(kFactors), of_weights), HasSubstr("gradients of attention weights cannot be computed with a score rule"));
  EXPECT_EQ(test::largest_magnitude(gradients.output.weight), 0);
}

// In cross-attention, in float32, a rule must see the positions of the queries and of the keys, and must have the right gradients.
TEST(LayerScoreRules, CountThePositionsOfTheInputs) {
  Random random(5);
  const MultiHeadAttention cross({.query_width = 12, .key_width = 10, .heads = 2, .seed = 2});
  const Tensor x = random.tensor(DType::f32, {2, 4, 12}), y = random.tensor(DType::f32, {2, 7, 10}), d_out = random.tensor(DType::f32, {2, 4, 12});
  Tensor bias(DType::f32, {2, 2, 4, 7}), out(DType::f32, d_out.shape()), expected(DType::f32, d_out.shape()), d_y(DType::f32, y.shape()), expected_d_y(DType::f32, y.shape());
  float* at = bias.data<float>();
  for (int b = 0; b < 2; ++b)
    for (int n = 0; n < 2; ++n)
      for (int t = 0; t < 4; ++t)
        for (int s = 0; s < 7; ++s) *at++ = static_cast<float>((kFactors[static_cast<std::size_t>(n)] + 0.25 * b) * (s - t));
  MultiHeadAttention::Saved saved, with_bias;
  cross.forward({.query = x, .key = y}, out, {.score_rule = distance_rule(kFactors)}, &saved);
  cross.forward({.query = x, .key = y}, expected, {.bias = bias}, &with_bias);
  EXPECT_TRUE(near(out, Tensor::copy_of(expected), 1e-5));
  cross.backward(saved, d_out, {.key = d_y});
  cross.backward(with_bias, d_out, {.key = expected_d_y});
  EXPECT_TRUE(near(d_y, Tensor::copy_of(expected_d_y), 1e-5));
}

}  // namespace
}  // namespace polyhead::nn
