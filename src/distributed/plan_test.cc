// Tests how sequences are sliced over ranks, and which plan choose_plan() chooses.
#include <gmock/gmock.h>

#include "polyhead/distributed.h"
#include "support/compare.h"

namespace polyhead::test {
namespace {

using namespace distributed;
using testing::ElementsAre;
using testing::HasSubstr;

// A plain number must not convert to Links: GCC would use it as ranks_per_machine, the first member.
template <class Options, class Value>
concept TakesLinks = requires(Value& value) { Options{.links = value}; };
static_assert(TakesLinks<PlanInput, Links> && !TakesLinks<PlanInput, int> && !TakesLinks<PlanInput, double>);
static_assert(TakesLinks<DistributedOptions, Links> && !TakesLinks<DistributedOptions, int> && !TakesLinks<DistributedOptions, double>);

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

TEST(Slices, OfHugeSequencesDoNotOverflow) {
  EXPECT_THAT(slice_of(SliceOrder::contiguous, std::int64_t{1} << 62, 999, 1000), ElementsAre(Positions{((std::int64_t{1} << 62) / 1000 * 999) + 903, std::int64_t{1} << 62}));
}

PlanInput input(int ranks, std::int64_t heads, std::int64_t kv_heads, int ranks_per_machine) {
  PlanInput result{.ranks = ranks, .heads = heads, .kv_heads = kv_heads, .queries = 65536, .keys = 65536, .qk_width = 64, .v_width = 64};
  result.links.ranks_per_machine = ranks_per_machine;
  return result;
}

TEST(Plan, OfOneRankSendsNothing) {
  EXPECT_EQ(choose_plan(input(1, 8, 8, 1)).plan, (Plan{1, 1}));
  EXPECT_EQ(received_bytes(input(1, 8, 8, 1), {1, 1}), 0);
}

TEST(Plan, DividesHeadsOnOneMachineIfStepsAreShort) {
  PlanInput fast = input(16, 16, 16, 16);
  fast.queries = fast.keys = 4096;
  fast.links.near_bytes_per_second = 2e8;  // keys take longer to arrive than a rank takes to compute with them
  EXPECT_EQ(choose_plan(fast).plan, (Plan{16, 1}));
}

TEST(Plan, UsesARingIfStepsAreLongEnoughToHideItsMessages) {
  const PlanChoice choice = choose_plan(input(4, 8, 8, 1));
  EXPECT_EQ(choice.plan, (Plan{1, 4}));
  EXPECT_THAT(choice.reason, HasSubstr("a ring of all ranks: predicted 5.5 s"));  // 65536^2 pairs * 8 heads * 128 / 4 ranks / 2e11 a second
}

TEST(Plan, DividesHeadsAndUsesARingBetweenMachinesWithSlowLinks) {
  PlanInput slow = input(16, 16, 16, 4);
  slow.queries = slow.keys = 8192;
  const PlanChoice choice = choose_plan(slow);
  EXPECT_EQ(choice.plan, (Plan{4, 4}));
  EXPECT_THAT(choice.reason, HasSubstr("the heads are divided among the 4 ranks of a group, and 4 groups form a ring"));
  EXPECT_THAT(choice.reason, HasSubstr("without a ring"));
}

TEST(Plan, LeavesNoRankWithoutAHead) {
  PlanInput few = input(8, 4, 4, 8);
  few.queries = few.keys = 4096;
  EXPECT_LE(choose_plan(few).plan.head_ranks, 4);
}

TEST(Plan, UsesARingIfAllHeadsShareABias) {
  PlanInput shared = input(4, 8, 8, 4);
  shared.queries = shared.keys = 512;
  shared.shared_head_bias = true;
  EXPECT_EQ(choose_plan(shared).plan, (Plan{1, 4}));
}

TEST(Plan, DividesHeadsIfARankNeedsAllKeys) {
  PlanInput all = input(8, 4, 4, 1);
  all.needs_all_keys = true;
  EXPECT_EQ(choose_plan(all).plan, (Plan{8, 1}));
}

TEST(Plan, CountsTheBytesOfARing) {
  // A rank receives the slices of 3 other ranks: 65536 * 3 / 4 rows of 8 heads, 128 float32 for key and value together.
  EXPECT_EQ(received_bytes(input(4, 8, 8, 1), {1, 4}), 65536.0 * 3 / 4 * 8 * 128 * 4);
}

TEST(Plan, CountsTheBytesOfHeads) {
  // From each of 3 other ranks, a rank receives rows of q, k, v and of the output for 2 heads: 16384 rows * 2 * (64 + 64) * 2 float32.
  EXPECT_EQ(received_bytes(input(4, 8, 8, 4), {4, 1}), 3.0 * 16384 * 2 * 128 * 2 * 4);
}

}  // namespace
}  // namespace polyhead::test
