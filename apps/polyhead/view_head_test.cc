#include "view_head.h"

#include <gtest/gtest.h>

#include <limits>

namespace polyhead::app {
namespace {

constexpr HeadChoice kLast{.layer = 1, .layers = 2, .heads = 3};

// Maps [2,3,T,T] in which every head gives each key the same attention weight.
Tensor flat_maps(std::int64_t tokens) {
  Tensor maps(DType::f32, {2, 3, tokens, tokens});
  for (std::int64_t i = 0; i < maps.numel(); ++i) maps.data<float>()[i] = 0.1F;
  return maps;
}

float& weight(Tensor& maps, std::int64_t layer, std::int64_t head, std::int64_t t, std::int64_t s) {
  return maps.data<float>()[((layer * 3 + head) * maps.shape()[2] + t) * maps.shape()[3] + s];
}

void expect_head(const HeadChoice& choice, std::int64_t layer, std::int64_t head) {
  EXPECT_EQ(choice.layer, layer);
  EXPECT_EQ(choice.head, head);
}

TEST(TellingHead, IsTheOneWhoseWordsLookMostAtOneOtherWord) {
  const std::vector<bool> special{true, false, false, false, false, false, true};
  Tensor maps = flat_maps(7);
  for (std::int64_t t = 0; t < 7; ++t) {
    weight(maps, 0, 0, t, t) = 1;                           // each token attends to itself
    weight(maps, 0, 1, t, 0) = weight(maps, 0, 1, t, 6) = 1;  // each token attends to special tokens
    if (t > 0) weight(maps, 0, 2, t, t - 1) = 1;            // each token attends to the token before it
    if (t < 6) weight(maps, 1, 0, t, t + 1) = 1;            // each token attends to the token after it
  }
  for (std::int64_t s = 0; s < 7; ++s) weight(maps, 1, 1, 0, s) = weight(maps, 1, 1, 6, s) = 1;  // only special tokens attend in this head
  weight(maps, 1, 2, 1, 4) = 0.4F;
  const HeadChoice choice = telling_head(maps, special, special, true, kLast);
  expect_head(choice, 1, 2);
  EXPECT_EQ(choice.description(), "layer 1, head 2, which looks most at single other words of all 6 heads");
}

TEST(TellingHead, DoesNotCountTheFirstTokenOfATextWithoutSpecialTokens) {
  const std::vector<bool> none(5);
  Tensor maps = flat_maps(5);
  for (std::int64_t t = 0; t < 5; ++t) weight(maps, 0, 0, t, 0) = 1;
  weight(maps, 0, 1, 4, 2) = 0.5F;
  expect_head(telling_head(maps, none, none, true, kLast), 0, 1);
}

TEST(TellingHead, OfTwoTextsCountsEveryPairOfWords) {
  Tensor maps = flat_maps(3);
  weight(maps, 0, 2, 1, 0) = 0.2F;
  weight(maps, 0, 1, 1, 1) = 0.9F;
  weight(maps, 1, 0, 1, 2) = 1;  // a word attends to a special token, which does not count
  weight(maps, 1, 1, 0, 1) = 1;  // a special token attends to a word, which does not count
  expect_head(telling_head(maps, {true, false, false}, {false, false, true}, false, kLast), 0, 1);
}

TEST(TellingHead, IsTheFallbackIfNoPairCounts) {
  const HeadChoice choice = telling_head(flat_maps(3), {true, false, true}, {true, false, true}, true, kLast);
  EXPECT_EQ(choice.layer, 1);
  EXPECT_FALSE(choice.head);
  EXPECT_EQ(choice.description(), "layer 1, mean of its 3 heads");
}

TEST(TellingHead, IgnoresNaN) {
  const std::vector<bool> none(5);
  Tensor maps = flat_maps(5);
  for (std::int64_t s = 0; s < 5; ++s) weight(maps, 0, 0, 4, s) = std::numeric_limits<float>::quiet_NaN();
  weight(maps, 1, 1, 4, 2) = 0.5F;
  expect_head(telling_head(maps, none, none, true, kLast), 1, 1);
}

}  // namespace
}  // namespace polyhead::app
