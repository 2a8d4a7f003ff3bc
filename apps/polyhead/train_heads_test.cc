#include "train_heads.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace polyhead::app {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
const std::string kLegend = "heads  score: o is one seed, | is the mean\n";

TEST(HeadsChart, HasTheScoresOfEachRowOnOneAxis) {
  const std::vector<HeadScores> rows{{1, {0, 0.2, 0.4}}, {4, {0.6, 0.8}}, {16, {1.3, 1.1, 1.2}}};  // the axis has 14 columns: 0, 0.1, ..., 1.3
  EXPECT_EQ(chart(rows, 21), kLegend +
            "    1  o | o\n"
            "    4        o|o\n"
            "   16             o|o\n"
            "       0.0000  1.3000\n");
  EXPECT_EQ(chart(rows, 1), chart(rows, 21)) << "the narrowest chart";
  EXPECT_EQ(chart(rows, 500), chart(rows, 80)) << "the widest chart";
}

TEST(HeadsChart, LeavesOutScoresThatAreNoNumbers) {
  EXPECT_EQ(chart(std::vector<HeadScores>{{1, {kNaN, kNaN}}, {2, {0.1, kNaN, 0.3}}}, 21), kLegend +
            "    1\n"
            "    2  o      |     o\n"
            "       0.1000  0.3000\n");
  EXPECT_EQ(chart(std::vector<HeadScores>{{1, {kNaN}}}, 80), "no model has a score\n");
}

TEST(HeadsChart, OfEqualScoresIsInTheMiddle) {
  EXPECT_EQ(chart(std::vector<HeadScores>{{8, {0.5, 0.5}}}, 21), kLegend +
            "    8         |\n"
            "       0.5000  0.5000\n");
}

}  // namespace
}  // namespace polyhead::app
