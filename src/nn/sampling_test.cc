#include "polyhead/nn/sampling.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <set>

#include "support/any_tensor.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using testing::ElementsAre;

std::vector<std::int64_t> values(const Tensor& tokens) { return {tokens.data<std::int64_t>(), tokens.data<std::int64_t>() + tokens.numel()}; }

// Returns how often each token is drawn from one row of logits, as a share of `draws` draws.
std::map<std::int64_t, double> shares(const Tensor& logits, SamplingOptions options, int draws) {
  std::map<std::int64_t, int> counts;
  Tensor token(DType::i64, {1});
  for (int i = 0; i < draws; ++i) {
    options.position = static_cast<std::uint64_t>(i);
    sample_tokens(logits, token, options);
    ++counts[token.data<std::int64_t>()[0]];
  }
  std::map<std::int64_t, double> found;
  for (const auto& [drawn, count] : counts) found[drawn] = static_cast<double>(count) / draws;
  return found;
}

TEST(Sampling, GreedyTakesTheLargestAndOfEqualOnesTheFirst) {
  const Tensor logits = Tensor::of<float>({3, 4}, {1, 5, 5, 2, -HUGE_VALF, -3, -HUGE_VALF, -4, 7, 7, 7, 7});
  Tensor tokens(DType::i64, {3});
  greedy_tokens(logits, tokens);
  EXPECT_THAT(values(tokens), ElementsAre(1, 1, 0));
  const test::StridedTensor strided = Random(1).strided(DType::f64, {5, 7});
  const Tensor plain = Tensor::copy_of(strided);
  Tensor ours(DType::i64, {5}), expected(DType::i64, {5});
  greedy_tokens(strided, ours);
  greedy_tokens(plain, expected);
  EXPECT_EQ(values(ours), values(expected));
}

TEST(Sampling, SharesAreTheProbabilities) {
  constexpr int kDraws = 40'000;
  const double p[] = {0.5, 0.25, 0.125, 0.0625, 0.0625};
  Tensor logits(DType::f64, {1, 5});
  for (int c = 0; c < 5; ++c) logits.data<double>()[c] = std::log(p[c]) + 3;
  // the tolerance is four standard deviations of a share
  const auto expect = [&](const SamplingOptions& options, const std::map<std::int64_t, double>& expected) {
    const auto found = shares(logits, options, kDraws);
    EXPECT_EQ(found.size(), expected.size());
    for (const auto& [token, share] : expected) {
      const auto at = found.find(token);
      EXPECT_NEAR(at == found.end() ? 0 : at->second, share, 4 * std::sqrt(share * (1 - share) / kDraws)) << token;
    }
  };
  expect({.seed = 1}, {{0, p[0]}, {1, p[1]}, {2, p[2]}, {3, p[3]}, {4, p[4]}});
  expect({.top_k = 2, .seed = 2}, {{0, 2.0 / 3}, {1, 1.0 / 3}});
  expect({.top_k = 4, .seed = 3}, {{0, 8.0 / 15}, {1, 4.0 / 15}, {2, 2.0 / 15}, {3, 1.0 / 15}});  // tokens 3 and 4 are equally likely; top_k = 4 keeps token 3, the first of them
  expect({.top_p = 0.5, .seed = 4}, {{0, 1}});
  expect({.top_p = 0.51, .seed = 5}, {{0, 2.0 / 3}, {1, 1.0 / 3}});
  expect({.top_k = 3, .top_p = 0.7, .seed = 6}, {{0, 2.0 / 3}, {1, 1.0 / 3}});  // top_k leaves 4/7, 2/7 and 1/7; the first two sum to more than 0.7
  expect({.temperature = 0.5, .top_k = 2, .seed = 7}, {{0, 0.8}, {1, 0.2}});     // temperature 0.5 squares the probabilities: 0.25 and 0.0625 are 4 : 1
  expect({.temperature = 1e-3, .seed = 8}, {{0, 1}});
}

TEST(Sampling, ADrawDependsOnSeedPositionAndRowOnly) {
  Random random(2);
  const Tensor logits = random.tensor(DType::f32, {64, 50}, -1, 1);
  Tensor all(DType::i64, {64}), again = all, part(DType::i64, {3}), other = all;
  sample_tokens(logits, all, {.seed = 5, .position = 9});
  sample_tokens(logits, again, {.seed = 5, .position = 9});
  EXPECT_EQ(values(again), values(all));
  sample_tokens(logits.view().slice(0, 0, 3), part, {.seed = 5, .position = 9});
  EXPECT_THAT(values(part), ElementsAre(values(all)[0], values(all)[1], values(all)[2]));
  for (const SamplingOptions& options : {SamplingOptions{.seed = 6, .position = 9}, SamplingOptions{.seed = 5, .position = 10}}) {
    sample_tokens(logits, other, options);
    EXPECT_NE(values(other), values(all));
  }
}

TEST(Sampling, RowsOfEqualLogitsGetDifferentDraws) {
  const Tensor logits(DType::f32, {64, 50});
  Tensor tokens(DType::i64, {64});
  sample_tokens(logits, tokens, {.seed = 1, .position = 0});
  const std::vector<std::int64_t> drawn = values(tokens);
  EXPECT_GT((std::set<std::int64_t>(drawn.begin(), drawn.end()).size()), 20u);  // 64 draws from 50 tokens give about 36 different tokens
}

TEST(Sampling, ATokenOfProbability0IsNeverDrawn) {
  const Tensor logits = Tensor::of<float>({1, 4}, {-HUGE_VALF, 0, -HUGE_VALF, -2000});
  EXPECT_EQ(shares(logits, {.seed = 1}, 500).size(), 1u);
  EXPECT_EQ(shares(logits, {.top_k = 4, .top_p = 0.999999, .seed = 1}, 500).size(), 1u);
}

TEST(Sampling, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  const Tensor logits(DType::f32, {2, 3}), empty(DType::f32, {2, 0}), nan = Tensor::of<float>({2, 1}, {0, std::nanf("")}), none = Tensor::of<float>({1, 2}, {-HUGE_VALF, -HUGE_VALF});
  Tensor tokens(DType::i64, {2}), one(DType::i64, {1}), ints(DType::i32, {2});
  const auto sampled = [&](const SamplingOptions& options) { return error_message([&] { sample_tokens(logits, tokens, options); }); };
  EXPECT_EQ(sampled({.temperature = 0}), "sample_tokens: temperature is 0; it must be finite and above 0 (greedy_tokens chooses the likeliest token)");
  EXPECT_EQ(sampled({.top_k = -1}), "sample_tokens: top_k is -1; it must be at least 0 (0: all tokens)");
  EXPECT_EQ(sampled({.top_p = 0}), "sample_tokens: top_p is 0; it must be in (0,1]");
  EXPECT_EQ(sampled({.top_p = std::nan("")}), "sample_tokens: top_p is nan; it must be in (0,1]");
  EXPECT_EQ(sampled({.position = 0}), "sample_tokens: seed is missing; a draw needs a seed and the token's position in its text");
  EXPECT_EQ(sampled({.seed = 0}), "sample_tokens: position is missing; a draw needs a seed and the token's position in its text");
  EXPECT_EQ(error_message([&] { greedy_tokens({}, tokens); }), "greedy_tokens: logits are missing");
  EXPECT_EQ(error_message([&] { greedy_tokens(empty, tokens); }),
            "greedy_tokens: logits are float32 [2,0]; they must be floating [B,C] with at least one token");
  EXPECT_EQ(error_message([&] { greedy_tokens(logits, one); }), "greedy_tokens: tokens is [1]; it must be [2]");
  EXPECT_EQ(error_message([&] { greedy_tokens(logits, ints); }), "greedy_tokens: tokens is int32; it must be int64");
  EXPECT_EQ(error_message([&] { greedy_tokens(nan, tokens); }), "greedy_tokens: row 1 of logits holds NaN or infinity");
  EXPECT_EQ(error_message([&] { greedy_tokens(none, one); }), "greedy_tokens: row 0 of logits is -infinity throughout; no token is possible");
  EXPECT_THAT(values(tokens), ElementsAre(0, 0));  // a refused call writes nothing
}

}  // namespace
}  // namespace polyhead::nn
