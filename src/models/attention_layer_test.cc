#include "polyhead/models/attention_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/test_error_matcher.h"

namespace polyhead::models {
namespace {

using testing::HasSubstr;

TEST(AttentionLayer, ATensorThatTheLayerCannotHoldIsAnErrorThatNamesTheTensor) {
  const nn::MultiHeadAttention layer({.query_width = 4, .heads = 2, .seed = 1});
  io::AttentionParameters parameters = attention_parameters(layer, "t5");
  parameters.tensors.emplace("relative_attention_bias", Tensor(DType::f32, {32, 2}));
  EXPECT_ERROR(attention_layer(parameters), invalid_argument, HasSubstr("no place for relative_attention_bias [32,2]"));
  parameters.tensors.erase("relative_attention_bias");
  EXPECT_EQ(attention_layer(parameters).config.heads, 2);
}

TEST(AttentionLayer, SettingsThatContradictTheParametersAreRefusedByName) {
  const nn::MultiHeadAttention layer({.query_width = 8, .heads = 2, .head_width = 3, .seed = 1});
  const io::AttentionParameters parameters = attention_parameters(layer, "bert");
  using C = nn::MultiHeadAttentionConfig;
  const std::pair<C, const char*> wrong[] = {{C{.query_width = 6}, "settings.query_width is 6; by the parameters it is 8"},
                                             {C{.key_width = 6}, "settings.key_width is 6; by the parameters it is 8"},
                                             {C{.value_width = 6}, "settings.value_width is 6; by the parameters it is 8"},
                                             {C{.heads = 3}, "settings.heads is 3; by the parameters it is 2"},
                                             {C{.kv_heads = 1}, "settings.kv_heads is 1; by the parameters it is 2"},
                                             {C{.head_width = 4}, "settings.head_width is 4; by the parameters it is 3"},
                                             {C{.value_head_width = 4}, "settings.value_head_width is 4; by the parameters it is 3"},
                                             {C{.output_width = 4}, "settings.output_width is 4; by the parameters it is 8"},
                                             {C{.bias = false}, "settings.bias is false; the parameters have q.bias"},
                                             {C{.output_bias = false}, "settings.output_bias is false; the parameters have output.bias"},
                                             {C{.output = nn::OutputProjection::none}, "settings.output is none; the parameters have output.weight"},
                                             {C{.gate = nn::Gate::sigmoid}, "settings.gate is sigmoid; the parameters have no gate.weight"},
                                             {C{.global_query = nn::GlobalQuery::masked_mean}, "a global query is asked for (global_query, masked_mean); the parameters have none"},
                                             {C{.add_bias_kv = true}, "settings.add_bias_kv is true; the parameters have no bias_k"},
                                             {C{.sink = true}, "settings.sink is true; the parameters have no sink"}};
  for (const auto& one : wrong) EXPECT_ERROR(attention_layer(parameters, one.first), invalid_argument, HasSubstr(one.second));
  io::AttentionParameters scaled = parameters;
  scaled.scale = 1;
  EXPECT_ERROR(attention_layer(scaled, {.scale = 2}), invalid_argument, HasSubstr("settings.scale is 2; by the parameters it is 1"));
  EXPECT_EQ(attention_layer(parameters, {.query_width = 8, .heads = 2, .head_width = 3, .output_width = 8, .dropout = 0.5, .scale = 2}).config.scale, 2);
}

TEST(AttentionLayer, ABiasOfQAloneIsRefused) {
  const nn::MultiHeadAttention layer({.query_width = 4, .heads = 2, .seed = 1});
  for (const auto& [left_out, message] : {std::pair{"k.bias", "MultiHeadAttention.k: a bias is missing; bias is true, for q, k and v alike"},
                                          {"v.bias", "MultiHeadAttention.v: a bias is missing; bias is true, for q, k and v alike"},
                                          {"q.bias", "MultiHeadAttention.k: a bias is given; bias is false, for q, k and v alike"}}) {
    io::AttentionParameters parameters = attention_parameters(layer, "bert");
    parameters.tensors.erase(left_out);
    EXPECT_ERROR(attention_layer(parameters), invalid_argument, HasSubstr(message));
  }
}

}  // namespace
}  // namespace polyhead::models
