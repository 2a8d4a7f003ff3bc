#include "polyhead/nn/learning_rate.h"

#include <cmath>

#include "support/any_tensor.h"
#include "support/compare.h"

namespace polyhead::nn {
namespace {

using test::error_message;

TEST(LearningRate, WarmupIsLinearAndThenTheCosineFalls) {
  const WarmupCosine schedule{.peak = 0.8, .last = 0.2, .warmup_steps = 4, .total_steps = 10};
  const double expected[] = {0.2, 0.4, 0.6, 0.8, 0.5 + 0.3 * std::cos(M_PI / 6), 0.65, 0.5, 0.35, 0.5 - 0.3 * std::cos(M_PI / 6), 0.2, 0.2};
  for (int step = 1; step <= 11; ++step) EXPECT_NEAR(warmup_cosine(step, schedule), expected[step - 1], 1e-15) << step;
  EXPECT_NEAR(warmup_cosine(1, {.peak = 1, .total_steps = 2}), 0.5, 1e-15);  // without warm-up the cosine begins at the first step
}

TEST(LearningRate, NoamRisesToTheWarmupAndFallsAsTheRoot) {
  const Noam schedule{.width = 16, .warmup_steps = 100, .factor = 2};
  EXPECT_NEAR(noam(100, schedule), 2.0 / 4 / 10, 1e-15);
  EXPECT_NEAR(noam(25, schedule), noam(100, schedule) / 4, 1e-15);
  EXPECT_NEAR(noam(400, schedule), noam(100, schedule) / 2, 1e-15);
}

TEST(LearningRate, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  EXPECT_EQ(error_message([] { warmup_cosine(0, {.total_steps = 5}); }), "warmup_cosine: step is 0; the first step is 1");
  EXPECT_EQ(error_message([] { warmup_cosine(1, {.warmup_steps = 5, .total_steps = 5}); }),
            "warmup_cosine: warmup_steps is 5 and total_steps 5; they must satisfy 0 <= warmup_steps < total_steps");
  EXPECT_EQ(error_message([] { noam(0, {.width = 5}); }), "noam: step is 0; the first step is 1");
  EXPECT_EQ(error_message([] { noam(1, {}); }), "noam: width is 0 and warmup_steps 4000; both must be at least 1");
}

}  // namespace
}  // namespace polyhead::nn
