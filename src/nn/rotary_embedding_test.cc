// Compares rotary tables with numbers that modeling_rope_utils.py of transformers computed, and with the formulas in another form.
#include "polyhead/nn/rotary_embedding.h"

#include <gmock/gmock.h>

#include <cmath>

#include "polyhead/error.h"
#include "support/compare.h"

namespace polyhead::nn {
namespace {

using test::same_bits;
using testing::HasSubstr;

std::string message(const RotaryEmbeddingConfig& config) {
  return test::error_message([&] { RotaryEmbedding embedding(config); });
}

void expect_frequencies(const RotaryEmbeddingConfig& config, const std::vector<double>& expected) {
  const RotaryEmbedding embedding(config);
  ASSERT_EQ(embedding.frequencies().size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(embedding.frequencies()[i], expected[i], 1e-14 * expected[i]) << i;
}

TEST(RotaryEmbedding, FrequenciesFallGeometrically) {
  expect_frequencies({.width = 8}, {1, 0.1, 0.01, 0.001});
  expect_frequencies({.width = 6, .base = 8}, {1, 0.5, 0.25});
  expect_frequencies({.width = 8, .scaling = RotaryScaling::linear, .factor = 4}, {0.25, 0.025, 0.0025, 0.00025});
}

TEST(RotaryEmbedding, NtkKeepsTheHighestFrequencyAndScalesTheLowest) {
  const RotaryEmbedding embedding({.width = 16, .scaling = RotaryScaling::ntk, .factor = 8});
  const RotaryEmbedding plain({.width = 16});
  EXPECT_EQ(embedding.frequencies()[0], 1);
  EXPECT_NEAR(embedding.frequencies()[7], plain.frequencies()[7] / 8, 1e-18);
}

// The config is that of Llama 3.1: base 500,000, factor 8 and original length 8192. Only the rotated width is smaller: 8.
TEST(RotaryEmbedding, Llama3) {
  const RotaryEmbeddingConfig config{
      .width = 8, .base = 500'000, .scaling = RotaryScaling::llama3, .factor = 8, .original_max_position_embeddings = 8192};
  expect_frequencies(config, {1.0, 0.03760603093086393, 0.0005248461609929547, 6.647869871181235e-06});
  EXPECT_EQ(RotaryEmbedding(config).attention_factor(), 1);
}

TEST(RotaryEmbedding, Yarn) {
  RotaryEmbeddingConfig config{.width = 16, .scaling = RotaryScaling::yarn, .factor = 4, .original_max_position_embeddings = 2048};
  expect_frequencies(config,
                     {1.0, 0.31622776601683794, 0.1, 0.02569350598886808, 0.00625, 0.0013834964763236662, 0.00025, 7.905694150420948e-05});
  EXPECT_NEAR(RotaryEmbedding(config).attention_factor(), 0.1 * std::log(4.0) + 1, 1e-15);
  config.truncate = false;
  expect_frequencies(config, {1.0, 0.31622776601683794, 0.1, 0.023870192321736323, 0.005056971521129435, 0.0008112903817014311, 0.00025,
                              7.905694150420948e-05});
  config.mscale = 0.707, config.mscale_all_dim = 1.5;  // the values in DeepSeek's models
  EXPECT_NEAR(RotaryEmbedding(config).attention_factor(), (0.0707 * std::log(4.0) + 1) / (0.15 * std::log(4.0) + 1), 1e-15);
  config.mscale = config.mscale_all_dim = 0, config.attention_factor = 1.25;
  EXPECT_EQ(RotaryEmbedding(config).attention_factor(), 1.25);
  const RotaryTables tables = RotaryEmbedding(config).tables(0, 1, DType::f64);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(tables.cos.data<double>()[i], 1.25);
}

TEST(RotaryEmbedding, LongropeDividesEachFrequencyByItsOwnFactor) {
  RotaryEmbeddingConfig config{
      .width = 8, .scaling = RotaryScaling::longrope, .factor = 32, .original_max_position_embeddings = 4096, .factors = {1, 2, 4, 10}};
  expect_frequencies(config, {1, 0.05, 0.0025, 0.0001});
  EXPECT_NEAR(RotaryEmbedding(config).attention_factor(), std::sqrt(1 + 5.0 / 12), 1e-15);  // 32 = 2^5 and 4096 = 2^12, so ln 32 / ln 4096 = 5 / 12
  config.attention_factor = 1.25;
  EXPECT_EQ(RotaryEmbedding(config).attention_factor(), 1.25);
}

TEST(RotaryEmbedding, ProportionalTurnsTheFirstPairsOnly) {
  expect_frequencies({.width = 8, .scaling = RotaryScaling::proportional, .factor = 2, .proportion = 0.5}, {0.5, 0.05, 0, 0});
  expect_frequencies({.width = 8, .scaling = RotaryScaling::proportional, .proportion = 0.3}, {1, 0, 0, 0});
}

TEST(RotaryEmbedding, TablesAreCosinesAndSinesOfPositionTimesFrequency) {
  const RotaryEmbedding embedding({.width = 4, .base = 100, .order = RotaryOrder::pairs});
  const Tensor positions = Tensor::of<std::int32_t>({2, 3}, {0, 7, -2, 1'000'000, 5, 3});
  const RotaryTables tables = embedding.tables(positions, DType::f64), rounded = embedding.tables(positions);
  ASSERT_EQ(tables.cos.shape(), (Shape{2, 3, 2}));
  EXPECT_EQ(rounded.sin.dtype(), DType::f32);
  EXPECT_EQ(tables.rotary().width, 4);
  EXPECT_EQ(tables.rotary().order, RotaryOrder::pairs);
  for (std::int64_t i = 0; i < 6; ++i) {
    for (std::int64_t j = 0; j < 2; ++j) {
      const double angle = positions.data<std::int32_t>()[i] * (j == 0 ? 1.0 : 0.1);
      EXPECT_NEAR(tables.cos.data<double>()[2 * i + j], std::cos(angle), 1e-10);
      EXPECT_NEAR(tables.sin.data<double>()[2 * i + j], std::sin(angle), 1e-10);
      EXPECT_EQ(rounded.cos.data<float>()[2 * i + j], static_cast<float>(tables.cos.data<double>()[2 * i + j]));
    }
  }
}

TEST(RotaryEmbedding, TablesFromTheLengthsOfSequences) {
  const RotaryEmbedding embedding({.width = 6});
  const Tensor lengths = Tensor::of<std::int64_t>({2}, {4, 0}), strided = Tensor::of<std::int16_t>({2, 2}, {4, 9, 0, 9});
  const RotaryTables whole = embedding.tables(0, 10), both = embedding.tables_from(lengths, 3),
                     of_view = embedding.tables_from(strided.view().select(1, 0), 3);
  ASSERT_EQ(both.cos.shape(), (Shape{2, 3, 3}));
  EXPECT_TRUE(same_bits(both.cos.view().select(0, 0), whole.cos.view().slice(0, 4, 7)));
  EXPECT_TRUE(same_bits(both.sin.view().select(0, 1), whole.sin.view().slice(0, 0, 3)));
  EXPECT_TRUE(same_bits(both.cos, of_view.cos));
  EXPECT_TRUE(same_bits(embedding.tables(4, 3).sin, both.sin.view().select(0, 0)));
  EXPECT_EQ(embedding.tables_from(lengths, 0).cos.shape(), (Shape{2, 0, 3}));
}

TEST(RotaryEmbedding, Messages) {
  EXPECT_THAT(message({.width = 3}), HasSubstr("width is 3; it must be even"));
  EXPECT_THAT(message({.width = 0}), HasSubstr("width is 0"));
  EXPECT_THAT(message({.width = 4, .base = 1}), HasSubstr("base is 1"));
  EXPECT_THAT(message({.width = 4, .factor = 2}), HasSubstr("factor is 2 without a scaling rule"));
  EXPECT_THAT(message({.width = 4, .scaling = RotaryScaling::linear, .factor = 0.5}), HasSubstr("factor is 0.5"));
  EXPECT_THAT(message({.width = 2, .scaling = RotaryScaling::ntk, .factor = 2}), HasSubstr("ntk needs at least 4"));
  EXPECT_THAT(message({.width = 4, .scaling = RotaryScaling::llama3, .factor = 2}), HasSubstr("original_max_position_embeddings is 0"));
  EXPECT_THAT(
      message({.width = 4, .scaling = RotaryScaling::llama3, .factor = 2, .original_max_position_embeddings = 9, .low_freq_factor = 4}),
      HasSubstr("low must be below high"));
  EXPECT_THAT(message({.width = 4, .scaling = RotaryScaling::yarn, .factor = 2, .original_max_position_embeddings = 9, .beta_slow = 64}),
              HasSubstr("slow must not be above fast"));
  EXPECT_THAT(
      message({.width = 4, .scaling = RotaryScaling::yarn, .factor = 2, .original_max_position_embeddings = 9, .attention_factor = 0}),
      HasSubstr("attention_factor is 0"));
  EXPECT_THAT(message({.width = 4, .scaling = RotaryScaling::linear, .attention_factor = 2}), HasSubstr("only scaling yarn and longrope"));
  const RotaryEmbeddingConfig linear{.width = 4, .scaling = RotaryScaling::linear, .factor = 2};
  const std::pair<const char*, double RotaryEmbeddingConfig::*> of_other_rules[] = {{"original_max_position_embeddings is 9, which only scaling llama3, yarn and longrope use; others need 0", &RotaryEmbeddingConfig::original_max_position_embeddings},
                                                                                    {"low_freq_factor is 9, which only scaling llama3 uses; others need 1", &RotaryEmbeddingConfig::low_freq_factor},
                                                                                    {"high_freq_factor is 9, which only scaling llama3 uses; others need 4", &RotaryEmbeddingConfig::high_freq_factor},
                                                                                    {"beta_fast is 9, which only scaling yarn uses; others need 32", &RotaryEmbeddingConfig::beta_fast},
                                                                                    {"beta_slow is 9, which only scaling yarn uses; others need 1", &RotaryEmbeddingConfig::beta_slow},
                                                                                    {"mscale is 9, which only scaling yarn uses; others need 0", &RotaryEmbeddingConfig::mscale},
                                                                                    {"mscale_all_dim is 9, which only scaling yarn uses; others need 0", &RotaryEmbeddingConfig::mscale_all_dim}};
  for (const auto& [expected, field] : of_other_rules) {
    RotaryEmbeddingConfig config = linear;
    config.*field = 9;
    EXPECT_THAT(message(config), HasSubstr(expected));
  }
  EXPECT_THAT(message({.width = 4, .truncate = false}), HasSubstr("truncate is false, which only scaling yarn uses"));
  EXPECT_THAT(message({.width = 4, .scaling = RotaryScaling::llama3, .factor = 2, .original_max_position_embeddings = 9, .beta_fast = 9}), HasSubstr("only scaling yarn uses"));
  const RotaryEmbeddingConfig yarn{.width = 4, .scaling = RotaryScaling::yarn, .factor = 2, .original_max_position_embeddings = 9};
  RotaryEmbeddingConfig one = yarn, both = yarn;
  one.mscale = 0.7;
  EXPECT_THAT(message(one), HasSubstr("mscale is 0.7 and mscale_all_dim 0; the attention factor is computed from both, so give both or neither"));
  one.mscale = 0, one.mscale_all_dim = 0.7;
  EXPECT_THAT(message(one), HasSubstr("mscale is 0 and mscale_all_dim 0.7"));
  both.mscale = both.mscale_all_dim = 0.7, both.attention_factor = 1.5;
  EXPECT_THAT(message(both), HasSubstr("mscale is 0.7 beside attention_factor 1.5"));
  EXPECT_THAT(message({.width = 4, .scaling = RotaryScaling::longrope, .factors = {1}}), HasSubstr("factors has 1 numbers; scaling longrope needs width / 2 of them, other scalings need none: 2"));
  EXPECT_THAT(message({.width = 4, .factors = {1}}), HasSubstr("other scalings need none: 0"));
  EXPECT_THAT(message({.width = 4, .scaling = RotaryScaling::longrope, .factors = {1, 0}}), HasSubstr("a factor of longrope is 0"));
  EXPECT_THAT(message({.width = 4, .scaling = RotaryScaling::longrope, .factor = 2, .factors = {1, 1}}), HasSubstr("original_max_position_embeddings is 0"));
  EXPECT_THAT(message({.width = 4, .scaling = RotaryScaling::proportional, .proportion = 1.5}), HasSubstr("proportion is 1.5"));
  EXPECT_THAT(message({.width = 4, .proportion = 0.5}), HasSubstr("only scaling proportional"));
  const RotaryEmbedding embedding({.width = 4});
  const Tensor floats(DType::f32, {3});
  EXPECT_THROW(embedding.tables(floats), Error);
  EXPECT_THROW(embedding.tables(0, 3, DType::bf16), Error);
  EXPECT_THROW(embedding.tables(0, -1), Error);
}

}  // namespace
}  // namespace polyhead::nn
