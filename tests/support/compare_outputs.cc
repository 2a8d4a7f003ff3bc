#include "support/compare_outputs.h"

namespace polyhead::test {

void expect_same_bits(const AttentionOutputs& actual, const AttentionOutputs& expected) {
  auto a = actual.list(), e = expected.list();
  a.emplace_back("attention_weights", actual.attention_weights), e.emplace_back("attention_weights", expected.attention_weights);
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(static_cast<bool>(a[i].second), static_cast<bool>(e[i].second)) << a[i].first;
    if (!a[i].second) continue;
    EXPECT_TRUE(same_bits(a[i].second, e[i].second)) << a[i].first;
  }
}

}  // namespace polyhead::test
