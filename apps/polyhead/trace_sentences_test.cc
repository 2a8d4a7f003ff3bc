#include "trace_sentences.h"

#include <gmock/gmock.h>

#include <stdexcept>

namespace polyhead::app {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<TraceStep> steps_of(nn::MultiHeadAttentionConfig config, const Shape& query, const Mask& mask = {}, const Shape& key = {}) {
  config.seed = 1;
  const nn::MultiHeadAttention layer(config);
  const Tensor x(config.dtype, query), y = key.empty() ? Tensor() : Tensor(config.dtype, key);
  return trace_sentences(layer, {.query = x, .key = y}, {.mask = mask}, {{"q", "W_q"}, {"k", "W_k"}, {"v", "W_v"}, {"output", "W_o"}});
}

const TraceStep& find(const std::vector<TraceStep>& steps, const std::string& name) {
  for (const TraceStep& step : steps) {
    if (step.step == name) return step;
  }
  throw std::runtime_error("no step " + name);
}

TEST(TraceSentences, SayHowManyPairsAMaskLeavesAndWhatEmptyRowsGive) {
  const Tensor lengths = Tensor::of<std::int64_t>({2}, {0, 2});
  nn::MultiHeadAttentionConfig config{.query_width = 6, .heads = 2, .empty_rows = EmptyRows::uniform};
  const std::vector<TraceStep> uniform = steps_of(config, {2, 3, 6}, {.key_lengths = lengths});
  EXPECT_THAT(find(uniform, "mask").meaning, AllOf(HasSubstr("6 of 18 pairs are attended, the same in every head"), HasSubstr("3 rows without a key: every key gets the same attention weight")));
  config.empty_rows = EmptyRows::zero;
  const std::vector<TraceStep> zero = steps_of(config, {2, 3, 6}, {.key_lengths = lengths});
  EXPECT_THAT(find(zero, "mask").meaning, HasSubstr("3 rows without a key: attention weights and output are 0"));
  EXPECT_THAT(find(zero, "softmax").meaning, HasSubstr("rows sum to 1, except empty rows"));
}

TEST(TraceSentences, AreRightForSizesOfZeroAndOne) {
  for (const TraceStep& step : steps_of({.query_width = 1, .heads = 1}, {1, 1, 1})) EXPECT_THAT(step.meaning, Not(HasSubstr("1 features"))) << step.step;
  EXPECT_THAT(find(steps_of({.query_width = 2, .heads = 2}, {1, 1, 2}), "split q").meaning, HasSubstr("2 heads of H = 1 feature: head n takes feature n"));
  EXPECT_THAT(find(steps_of({.query_width = 2, .heads = 2}, {1, 1, 2}, {}, {1, 0, 2}), "softmax").meaning, HasSubstr("none, because there is no key"));
}

TEST(TraceSentences, NameModulesAsTheSourceCodeDoes) {
  const std::vector<TraceStep> steps = steps_of({.query_width = 4, .heads = 2}, {2, 3, 4}, {}, {2, 3, 4});
  EXPECT_EQ(find(steps, "projection q").where, "W_q(query)");
  EXPECT_EQ(find(steps, "projection v").where, "W_v(key)");
  EXPECT_EQ(find(steps, "output projection").where, "W_o(merged)");
  EXPECT_THAT(find(steps, "split q").meaning, HasSubstr("the same data as (4,3,2)"));
}

}  // namespace
}  // namespace polyhead::app
