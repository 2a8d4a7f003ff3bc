#include "training/data.h"

#include <gmock/gmock.h>

#include <fstream>

#include "polyhead/error.h"
#include "support/compare.h"

namespace polyhead::training {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

class DataTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path file(std::string_view text, const std::string& name = "data") {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
};

auto bad(std::int64_t line, const char* reason) { return AllOf(Field(&BadLine::line, line), Field(&BadLine::reason, HasSubstr(reason))); }

TEST_F(DataTest, ReadsRatingsInLongAndShortForm) {
  const auto data = read_ratings(file("\xEF\xBB\xBF" "2.5\tfilms\t7\t  A fine film. \r\n\n-4\tBad\npositive\tYes\nneutral\tHm\n+1\tlast line without an end"));
  ASSERT_EQ(data.rows.size(), 5U);
  EXPECT_THAT(data.bad, IsEmpty());
  EXPECT_EQ(data.rows[0].rating, 2.5);
  EXPECT_EQ(data.rows[0].set, "films");
  EXPECT_EQ(data.rows[0].id, "7");
  EXPECT_EQ(data.rows[0].text, "A fine film.");
  EXPECT_EQ(data.rows[1].rating, -4);
  EXPECT_EQ(data.rows[2].rating, 1);
  EXPECT_EQ(data.rows[3].rating, 0);
  EXPECT_EQ(data.rows[4].text, "last line without an end");
}

TEST_F(DataTest, BadLinesAreSkippedWithTheirNumber) {
  using namespace std::string_view_literals;
  const auto data = read_ratings(file("1\tgood\nno tab\n1\ta\tb\n5\ttoo high\nnan\tx\n1x\tx\n\n1\t \n1\ta\0b\n1\t\xC3(\n1\t\xED\xA0\x80\n\tno rating\n2\tgood"sv));
  EXPECT_EQ(data.rows.size(), 2U);
  EXPECT_THAT(data.bad, ElementsAre(bad(2, "1 column;"), bad(3, "3 columns"), bad(4, "\"5\""), bad(5, "\"nan\""), bad(6, "\"1x\""), bad(8, "text is empty"), bad(9, "NUL"),
                                    bad(10, "byte 3 is not UTF-8"), bad(11, "byte 3"), bad(12, "\"\"")));
  EXPECT_THAT(describe(data.bad, 2, 2), AllOf(HasSubstr("10 of 12 lines are skipped"), HasSubstr("line 3: "), HasSubstr("and 8 more"), testing::Not(HasSubstr("line 4"))));
  EXPECT_EQ(describe({}, 3), "");
}

TEST_F(DataTest, ATooLongLineIsOneBadLine) {
  const std::string longest = "1\t" + std::string(kLongestLine - 2, 'x');
  const auto data = read_ratings(file(longest + "\r\n" + longest + "y\n" + longest + longest + longest + "\n2\tnext\n"));
  EXPECT_THAT(data.bad, ElementsAre(bad(2, "more than 1048576 bytes"), bad(3, "more than")));
  ASSERT_EQ(data.rows.size(), 2U);
  EXPECT_EQ(data.rows[0].text.size(), kLongestLine - 2);
  EXPECT_EQ(data.rows[1].text, "next");
}

TEST_F(DataTest, AFileWithoutAUsableLineIsAnError) {
  EXPECT_THAT(test::error_message([&] { read_pairs(file("")); }), HasSubstr("no usable line among 0"));
  EXPECT_THAT(test::error_message([&] { read_pairs(file("\n\r\n \n")); }), HasSubstr("no usable line among 3"));
  EXPECT_THAT(test::error_message([&] { read_pairs(file("one\n")); }), HasSubstr("no usable line among 1; line 1: the line has 1 column;"));
  EXPECT_THAT(test::error_message([&] { read_pairs(folder_); }), HasSubstr("is a folder"));
  EXPECT_THAT(test::error_message([&] { read_pairs(folder_ / "none"); }), HasSubstr("cannot open"));
}

TEST_F(DataTest, PairsAreGroupedBySource) {
  const auto data = read_pairs(file("Go on.\tContinue.\nStop.\tArrête.\nGo on.\tVas-y.\nx\t\n\ty\na\tb\tc\n"));
  EXPECT_THAT(data.bad, ElementsAre(bad(4, "target is empty"), bad(5, "source is empty"), bad(6, "3 columns")));
  const auto groups = group_by_source(data.rows);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].source, "Go on.");
  EXPECT_THAT(groups[0].targets, ElementsAre("Continue.", "Vas-y."));
  EXPECT_THAT(groups[1].targets, ElementsAre("Arrête."));
}

TEST_F(DataTest, ReadsAlignedPairs) {
  const auto data = read_aligned_pairs(file("a red car\tune voiture rouge\t0-0 1-2 2p1\nx y\tz\t\na\tb\t0-1\na\tb\t0+0\na\tb\t-1-0\na\tb\t0-0x\na\t\t0-0\na\tb\n"));
  ASSERT_EQ(data.rows.size(), 2U);
  EXPECT_THAT(data.rows[0].target, ElementsAre("une", "voiture", "rouge"));
  ASSERT_EQ(data.rows[0].links.size(), 3U);
  EXPECT_EQ(data.rows[0].links[1].target, 2);
  EXPECT_TRUE(data.rows[0].links[1].sure);
  EXPECT_FALSE(data.rows[0].links[2].sure);
  EXPECT_THAT(data.rows[1].links, IsEmpty());
  EXPECT_THAT(data.bad, ElementsAre(bad(3, "outside of 1 source and 1 target"), bad(4, "not i-j"), bad(5, "outside"), bad(6, "not i-j"), bad(7, "target is empty"), bad(8, "2 columns")));
}

TEST_F(DataTest, ReadsAbstracts) {
  const auto data = read_abstracts(file(R"({"source": ["One.", " Two. "], "target": ["T"], "source_labels": [0, 1], "id": 3})" "\n"
                                        R"({"source": ["One."], "target": ["T", "U"]})" "\n{\n[]\n"
                                        R"({"source": ["One."]})" "\n" R"({"source": [], "target": ["T"]})" "\n" R"({"source": ["a", "b"], "target": ["T"], "source_labels": [1]})" "\n"
                                        R"({"source": "One.", "target": ["T"], "source_labels": ["x"]})" "\n" R"({"source": ["a\u0000"], "target": ["T"]})" "\n" R"({"source": [""], "target": ["T"]})"));
  ASSERT_EQ(data.rows.size(), 2U);
  EXPECT_THAT(data.rows[0].sentences, ElementsAre("One.", "Two."));
  EXPECT_THAT(data.rows[0].labels, ElementsAre(0, 1));
  EXPECT_THAT(data.rows[1].targets, ElementsAre("T", "U"));
  EXPECT_THAT(data.bad, ElementsAre(bad(3, "not JSON"), bad(4, "not an object"), bad(5, "not an object"), bad(6, "`source` is empty"), bad(7, "1 numbers for 2"), bad(8, "not an object"),
                                    bad(9, "NUL"), bad(10, "sentence is empty")));
}

TEST(Split, ThePartOfARowDependsOnItsKeyAlone) {
  std::int64_t tenth = 0, half = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string key = "sentence " + std::to_string(i);
    tenth += in_validation(key, 0.1), half += in_validation(key, 0.5);
    EXPECT_TRUE(!in_validation(key, 0.1) || in_validation(key, 0.5)) << key;
  }
  EXPECT_NEAR(static_cast<double>(tenth), 2000, 170);  // four standard deviations
  EXPECT_NEAR(static_cast<double>(half), 10000, 283);
  EXPECT_FALSE(in_validation("x", 0));
  EXPECT_TRUE(in_validation("x", 1));
}

}  // namespace
}  // namespace polyhead::training
