#include "suggest.h"

#include <gmock/gmock.h>

#include "core/edit_distance.h"

namespace polyhead::app {
namespace {

const std::vector<std::string> kCommands{"view", "inspect", "devices", "explain"};

TEST(EditDistance, CountsEachEditOnce) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("view", "view"), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("veiw", "view"), 1u) << "a swap of neighbours is one edit";
}

TEST(EditDistance, IsSymmetric) { EXPECT_EQ(edit_distance("flaw", "lawns"), edit_distance("lawns", "flaw")); }

TEST(Closest, FindsTheMisspelledName) {
  EXPECT_EQ(closest("veiw", kCommands), "view");
  EXPECT_EQ(closest("inspekt", kCommands), "inspect");
  EXPECT_EQ(closest("device", kCommands), "devices");
}

TEST(Closest, FindsANameByItsBeginning) { EXPECT_EQ(closest("exp", kCommands), "explain"); }

TEST(Closest, FindsNothingIfNoNameIsSimilar) {
  EXPECT_EQ(closest("banana", kCommands), "");
  EXPECT_EQ(closest("reflect", kCommands), "") << "four of seven letters would change: too many for a suggestion";
  EXPECT_EQ(closest("", kCommands), "");
  EXPECT_EQ(closest("--", std::vector<std::string>{"--q", "--k"}), "");
  EXPECT_EQ(closest("x", std::vector<std::string>{"y"}), "") << "every letter would change";
}

TEST(Closest, PrefersTheMoreSimilarName) { EXPECT_EQ(closest("--tetx", std::vector<std::string>{"--text-pair", "--text", "--test-it"}), "--text"); }

TEST(UnknownName, ListsAllNamesIfNoneIsSimilar) {
  EXPECT_EQ(unknown_name("banana", "command", kCommands), "'banana' is not a command; choose from view, inspect, devices, explain");
  EXPECT_EQ(unknown_name("veiw", "command", kCommands), "'veiw' is not a command; did you mean 'view'?");
}

}  // namespace
}  // namespace polyhead::app
