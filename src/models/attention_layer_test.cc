#include "polyhead/models/attention_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/test_error_matcher.h"

namespace polyhead::models {
namespace {

using testing::HasSubstr;

TEST(AttentionLayer, ATensorWithoutAPlaceInItIsAnErrorThatNamesIt) {
  const nn::MultiHeadAttention layer({.query_width = 4, .heads = 2, .seed = 1});
  io::AttentionParameters parameters = attention_parameters(layer, "t5");
  parameters.tensors.emplace("relative_attention_bias", Tensor(DType::f32, {32, 2}));
  EXPECT_ERROR(attention_layer(parameters), invalid_argument, HasSubstr("no place for relative_attention_bias [32,2]"));
  parameters.tensors.erase("relative_attention_bias");
  EXPECT_EQ(attention_layer(parameters).config.heads, 2);
}

}  // namespace
}  // namespace polyhead::models
