// Slices and plans: pure functions.
#include <gmock/gmock.h>

#include "polyhead/distributed.h"
#include "support/compare.h"

namespace polyhead::test {
namespace {

using namespace distributed;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Slices, OfAllRanksCoverEachPositionOnce) {
  for (const SliceOrder order : {SliceOrder::contiguous, SliceOrder::zigzag}) {
    for (const int ranks : {1, 2, 3, 5, 8}) {
      for (const std::int64_t length : {0, 1, 2, 7, 16, 100, 1023}) {
        std::vector<int> seen(static_cast<std::size_t>(length));
        for (int rank = 0; rank < ranks; ++rank) {
          std::int64_t count = 0;
          for (const Positions& range : slice_of(order, length, rank, ranks)) {
            count += range.count();
            for (std::int64_t i = range.first; i < range.last; ++i) ++seen[static_cast<std::size_t>(i)];
          }
          EXPECT_EQ(count, slice_length(order, length, rank, ranks));
        }
        EXPECT_THAT(seen, testing::Each(1)) << length << ' ' << ranks;
      }
    }
  }
}

TEST(Slices, ZigzagTakesOneRangeFromEachEnd) {
  EXPECT_THAT(slice_of(SliceOrder::zigzag, 80, 0, 4), ElementsAre(Positions{0, 10}, Positions{70, 80}));
  EXPECT_THAT(slice_of(SliceOrder::zigzag, 80, 3, 4), ElementsAre(Positions{30, 50}));
}

TEST(Slices, AreOfHugeSequencesToo) {
  EXPECT_THAT(slice_of(SliceOrder::contiguous, std::int64_t{1} << 62, 999, 1000), ElementsAre(Positions{((std::int64_t{1} << 62) / 1000 * 999) + 903, std::int64_t{1} << 62}));
}

PlanInput input(int ranks, std::int64_t heads, std::int64_t kv_heads) {
  return {.ranks = ranks, .ranks_per_machine = ranks, .heads = heads, .kv_heads = kv_heads, .queries = 65536, .keys = 65536, .qk_width = 64, .v_width = 64};
}

TEST(Plan, OnOneMachineWithEnoughHeadsIsHeads) { EXPECT_EQ(choose_plan(input(4, 8, 8)).plan, (Plan{4, 1})); }
TEST(Plan, OfOneRankSendsNothing) {
  EXPECT_EQ(choose_plan(input(1, 8, 8)).plan, (Plan{1, 1}));
  EXPECT_EQ(received_bytes(input(1, 8, 8), {1, 1}), 0);
}
TEST(Plan, BetweenMachinesIsARing) {
  PlanInput four_machines = input(16, 16, 16);
  four_machines.ranks_per_machine = 4;
  const PlanChoice choice = choose_plan(four_machines);
  EXPECT_EQ(choice.plan, (Plan{4, 4}));
  EXPECT_THAT(choice.reason, HasSubstr("heads on groups of 4 ranks, and a ring of 4 groups"));
}
TEST(Plan, WithFewerHeadsThanRanksGivesEveryRankAHead) { EXPECT_EQ(choose_plan(input(8, 4, 4)).plan, (Plan{4, 2})); }
TEST(Plan, WithABiasOfOneHeadIsARing) {
  PlanInput shared = input(4, 8, 8);
  shared.shared_head_bias = true;
  EXPECT_EQ(choose_plan(shared).plan, (Plan{1, 4}));
}
TEST(Plan, ThatNeedsAllKeysIsHeads) {
  PlanInput all = input(8, 4, 4);
  all.needs_all_keys = true;
  EXPECT_EQ(choose_plan(all).plan, (Plan{8, 1}));
}
TEST(Plan, CountsTheBytesOfARing) {
  // 3 of 4 slices of keys and values: 65536 * 3 / 4 rows * 8 heads * 128 float32.
  EXPECT_EQ(received_bytes(input(4, 8, 8), {1, 4}), 65536.0 * 3 / 4 * 8 * 128 * 4);
}

}  // namespace
}  // namespace polyhead::test
