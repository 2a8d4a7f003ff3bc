#include "core/parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/interrupt.h"
#include "polyhead/error.h"
#include "support/child_process.h"
#include "support/compare.h"
#include "support/last_piece_first.h"
#include "support/machines.h"
#include "support/thread_count.h"

namespace polyhead {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using test::LastPieceFirst;
using test::status_of_child;

constexpr auto kPatience = std::chrono::seconds(300);
#ifdef __SANITIZE_THREAD__
// Tests of fork are skipped, because ThreadSanitizer starts a thread and does not let a forked child start threads.
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

class ParallelFor : public ::testing::Test {
  test::ThreadCount threads_{4};
};

std::int64_t threads_of_this_process() {
  std::int64_t count = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

// Returns how often each index was visited.
std::vector<int> visits(std::int64_t count, std::int64_t grain, Executor* executor = nullptr) {
  std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
  parallel_for(count, grain, executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) ++seen[static_cast<std::size_t>(i)];
  });
  return {seen.begin(), seen.end()};
}

// Runs two pieces that each wait until the other has begun, for at most kPatience. Returns true if two threads ran them at the same time.
bool two_pieces_meet() {
  std::atomic<int> begun{0};
  std::atomic<bool> met{true};
  parallel_for(2, 1, nullptr, [&](std::int64_t first, std::int64_t last) {
    begun += static_cast<int>(last - first);
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (begun < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    if (begun < 2) met = false;
  });
  return met;
}

TEST_F(ParallelFor, EveryIndexIsVisitedOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    for (const std::int64_t count : {0, 1, 2, 3, 7, 8, 31, 32, 33, 1000}) {
      for (const std::int64_t grain : {0, 1, 2, 5, 1000}) {
        SCOPED_TRACE(::testing::Message() << threads << " threads, count " << count << ", grain " << grain);
        EXPECT_THAT(visits(count, grain), Each(1));
      }
    }
  }
}

TEST_F(ParallelFor, PiecesHoldAtLeastTheGrain) {
  for (const std::int64_t count : {10, 99, 1000}) {
    std::atomic<std::int64_t> least{count};
    parallel_for(count, 10, nullptr, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t seen = least; last - first < seen && !least.compare_exchange_weak(seen, last - first);) {
      }
    });
    EXPECT_GE(least, 10) << "count " << count;
  }
}

TEST_F(ParallelFor, HugeCountsAreCutWithoutOverflow) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::uint64_t> total{0};
  parallel_for(kHuge, 1, nullptr, [&](std::int64_t first, std::int64_t last) {
    EXPECT_LT(first, last);
    total += static_cast<std::uint64_t>(last - first);
  });
  EXPECT_EQ(total, static_cast<std::uint64_t>(kHuge));
}

// Requests an interrupt at the n-th call of wanted().
class EndsAt : public InterruptWatch {
 public:
  explicit EndsAt(int look) : look_(look) {}
  ~EndsAt() override = default;
  int looks = 0;

 private:
  bool wanted() override {
    EXPECT_EQ(std::this_thread::get_id(), owner_);
    return ++looks == look_;
  }
  const std::thread::id owner_ = std::this_thread::get_id();
  int look_;
};

void sleep_milliseconds(int count) { std::this_thread::sleep_for(std::chrono::milliseconds(count)); }

// There are so many tasks of 5 ms that only the interrupt can end the call.
TEST_F(ParallelFor, AnOperationThatIsInterruptedEnds) {
  constexpr std::int64_t kEndless = std::int64_t{1} << 60;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    for (const bool nested : {false, true}) {
      std::atomic<int> running{0}, most{0};
      EndsAt watch(2);
      const auto work = [&](std::int64_t first, std::int64_t last) {
        most = std::max<int>(most, ++running);
        const auto leave = std::unique_ptr<std::atomic<int>, void (*)(std::atomic<int>*)>(&running, [](std::atomic<int>* count) { --*count; });
        for (std::int64_t i = first; i < last; ++i) {
          sleep_milliseconds(5);
          check_interrupt();
        }
      };
      const auto run = [&] {
        if (!nested) return parallel_for(kEndless, 1, nullptr, work);
        parallel_for(2, 1, nullptr, [&](std::int64_t, std::int64_t) { parallel_for(kEndless, 1, nullptr, work); });
      };
      EXPECT_THROW(run(), Interrupted);
      EXPECT_EQ(running, 0);
      EXPECT_EQ(watch.looks, 2);
      EXPECT_TRUE(interrupted());
    }
    EXPECT_FALSE(interrupted());
    EXPECT_THAT(visits(1000, 1), Each(1));
  }
}

// The body does not check for an interrupt. parallel_for must cut the pieces into shorter ranges and check between them.
TEST_F(ParallelFor, LongPiecesAreCutIfThereIsAnInterruptWatch) {
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    EndsAt watch(1);
    EXPECT_THROW(parallel_for(std::int64_t{1} << 60, 1, nullptr, [](std::int64_t first, std::int64_t last) {
                   for (std::int64_t i = first; i < last; ++i) sleep_milliseconds(1);
                 }),
                 Interrupted);
  }
}

TEST_F(ParallelFor, WithAWatchEveryIndexIsVisitedOnce) {
  EndsAt watch(-1);
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    for (const std::int64_t count : {0, 1, 2, 31, 1000}) {
      for (const std::int64_t grain : {0, 1, 5, 1000}) EXPECT_THAT(visits(count, grain), Each(1));
    }
  }
}

TEST_F(ParallelFor, AWatchEndsOnlyOperationsOfItsThread) {
  EndsAt watch(1);
  std::thread([] {
    sleep_milliseconds(250);
    EXPECT_FALSE(interrupted());
    EXPECT_EQ(current_watch(), nullptr);
  }).join();
  EXPECT_TRUE(interrupted());
  EndsAt inner(-1);  // a second watch of the same thread, as if wanted() itself called an operation
  EXPECT_FALSE(interrupted());
}

TEST_F(ParallelFor, PiecesRunAtTheSameTime) { EXPECT_TRUE(two_pieces_meet()); }

TEST_F(ParallelFor, WorkBelowTheGrainStaysInTheCaller) {
  parallel_for(100, 51, nullptr, [caller = std::this_thread::get_id()](std::int64_t first, std::int64_t last) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(std::pair(first, last), std::pair(std::int64_t{0}, std::int64_t{100}));
  });
}

TEST_F(ParallelFor, OneThreadIsTheCaller) {
  set_num_threads(1);
  parallel_for(1000, 1, nullptr, [caller = std::this_thread::get_id()](std::int64_t first, std::int64_t last) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(last - first, 1000);
  });
}

TEST_F(ParallelFor, NestedCallsEnd) {
  std::atomic<int> runs{0};
  for (int repeat = 0; repeat < 200; ++repeat) {
    parallel_for(8, 1, nullptr, [&](std::int64_t outer_first, std::int64_t outer_last) {
      for (std::int64_t i = outer_first; i < outer_last; ++i) {
        parallel_for(8, 1, nullptr, [&](std::int64_t middle_first, std::int64_t middle_last) {
          for (std::int64_t j = middle_first; j < middle_last; ++j) {
            parallel_for(8, 1, nullptr, [&](std::int64_t first, std::int64_t last) { runs += static_cast<int>(last - first); });
          }
        });
      }
    });
  }
  EXPECT_EQ(runs, 200 * 8 * 8 * 8);
}

// Measures the highest number of pieces that run at once.
TEST_F(ParallelFor, NestedCallsUseNoMoreThreadsThanOneCall) {
  std::atomic<int> running{0}, most{0};
  parallel_for(16, 1, nullptr, [&](std::int64_t, std::int64_t) {
    parallel_for(16, 1, nullptr, [&](std::int64_t, std::int64_t) {
      const int now = ++running;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      --running;
    });
  });
  EXPECT_LE(most, 4);
}

TEST_F(ParallelFor, FewerThreadsCanBeAskedForLater) {
  set_num_threads(8);
  visits(1000, 1);
  set_num_threads(2);
  std::atomic<int> running{0}, most{0};
  parallel_for(64, 1, nullptr, [&](std::int64_t, std::int64_t) {
    const int now = ++running;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --running;
  });
  EXPECT_LE(most, 2);
}

TEST_F(ParallelFor, ThreadsOfTheUserMayCallAtOnce) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> users;
  for (int user = 0; user < 4; ++user) {
    users.emplace_back([&] {
      for (int repeat = 0; repeat < 500; ++repeat) {
        for (const int seen : visits(64, 1)) wrong += seen != 1;
      }
    });
  }
  for (std::thread& user : users) user.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(ParallelFor, AnExceptionReachesTheCaller) {
  for (int thrower = 0; thrower < 16; ++thrower) {
    std::atomic<int> running{0};
    try {
      parallel_for(16, 1, nullptr, [&](std::int64_t first, std::int64_t last) {
        ++running;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        const bool throws = first <= thrower && thrower < last;
        --running;
        if (throws) throw std::runtime_error("piece " + std::to_string(thrower));
      });
      ADD_FAILURE() << "no exception from index " << thrower;
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "piece " + std::to_string(thrower));
    }
    EXPECT_EQ(running, 0) << "a piece was still running when the call ended";
  }
  EXPECT_THAT(visits(1000, 1), Each(1)) << "after exceptions";
}

TEST_F(ParallelFor, AllPiecesMayThrow) {
  EXPECT_THROW(parallel_for(16, 1, nullptr, [](std::int64_t, std::int64_t) { throw std::runtime_error("each"); }), std::runtime_error);
}

// The caller may have set flush-to-zero or a rounding mode. Workers must use the same settings, or results would depend on the thread that computes them.
TEST_F(ParallelFor, PiecesSeeTheFloatingPointEnvironmentOfTheCaller) {
  ASSERT_TRUE(two_pieces_meet());  // starts the workers while the default floating-point settings are active
  std::fesetround(FE_UPWARD);
  std::atomic<int> begun{0}, upward{0};
  parallel_for(2, 1, nullptr, [&](std::int64_t, std::int64_t) {
    ++begun;
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (begun < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    upward += std::fegetround() == FE_UPWARD;
  });
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(upward, 2);
  std::atomic<int> nearest{0};
  parallel_for(64, 1, nullptr, [&](std::int64_t first, std::int64_t last) {
    nearest += std::fegetround() == FE_TONEAREST ? static_cast<int>(last - first) : 0;
  });
  EXPECT_EQ(nearest, 64);
}

TEST_F(ParallelFor, AnExecutorOfTheCallerDoesTheWork) {
  LastPieceFirst executor(3);
  EXPECT_THAT(visits(100, 1, &executor), Each(1));
  EXPECT_EQ(executor.runs, 1);
  EXPECT_THAT(visits(100, 100, &executor), Each(1));
  EXPECT_EQ(executor.runs, 1) << "one piece needs no executor";
}

TEST_F(ParallelFor, AnExecutorOfOneThreadIsTheCaller) {
  LastPieceFirst executor(1);
  EXPECT_THAT(visits(100, 1, &executor), Each(1));
  EXPECT_EQ(executor.runs, 0);
}

TEST_F(ParallelFor, AnExecutorOfLessThanOneThreadIsRefusedWhateverTheCount) {
  const auto nothing = [](std::int64_t, std::int64_t) {};
  const std::int64_t bounds[] = {0, 1, 2};
  for (const int threads : {0, -1, std::numeric_limits<int>::min()}) {
    LastPieceFirst executor(threads);
    const std::string expected = "num_threads() of the executor is " + std::to_string(threads) + "; it must be at least 1";
    EXPECT_EQ(test::error_message([&] { parallel_for(1000, 1, &executor, nothing); }), expected);
    EXPECT_EQ(test::error_message([&] { parallel_for(1, 1, &executor, nothing); }), expected);
    EXPECT_EQ(test::error_message([&] { parallel_pieces(bounds, &executor, nothing); }), expected);
    EXPECT_EQ(test::error_message([&] { parallel_pieces(std::span(bounds).first(2), &executor, nothing); }), expected);
    EXPECT_EQ(executor.runs, 0);
  }
}

TEST_F(ParallelFor, AnExecutorOfAnyMoreThreadsWorks) {
  for (const int threads : {4096, 1'000'000, std::numeric_limits<int>::max()}) {
    LastPieceFirst executor(threads);
    EXPECT_EQ(threads_of(&executor), 4096);
    EXPECT_THAT(visits(100'000, 1, &executor), Each(1));
  }
}

// Raises the floating-point exceptions FE_INVALID, FE_DIVBYZERO and FE_OVERFLOW.
void raise_exceptions() {
  volatile double zero = 0, large = 1e300, nan = zero / zero, infinity = 1 / zero, overflow = large * large;
  (void)nan, (void)infinity, (void)overflow;
}

TEST_F(ParallelFor, FlagsOfTheCallerStayAsTheyWere) {
  constexpr int kFlags = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;
  const std::int64_t bounds[] = {0, 1, 2};
  LastPieceFirst executor(3);
  const auto raise = [](std::int64_t, std::int64_t) { raise_exceptions(); };
  for (const int before : {0, FE_OVERFLOW}) {
    for (Executor* const with : {static_cast<Executor*>(&executor), static_cast<Executor*>(nullptr)}) {
      std::feclearexcept(FE_ALL_EXCEPT), std::feraiseexcept(before);
      parallel_for(100, 1, with, raise), parallel_for(1, 1, with, raise);
      parallel_pieces(bounds, with, raise), parallel_pieces(std::span(bounds).first(2), with, raise);
      EXPECT_EQ(std::fetestexcept(kFlags), before);
    }
  }
  EXPECT_THROW(parallel_for(100, 1, &executor, [](std::int64_t, std::int64_t) { raise_exceptions(), throw std::runtime_error("piece"); }), std::runtime_error);
  EXPECT_EQ(std::fetestexcept(kFlags), FE_OVERFLOW);
  std::feclearexcept(FE_ALL_EXCEPT);
}

#ifdef __GLIBC__
TEST_F(ParallelFor, TrapsOfTheCallerDoNotReachPieces) {
  if (kThreadSanitizer) GTEST_SKIP();
  const auto with_traps = [](bool inside) {
    feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
    parallel_for(100, 1, nullptr, [](std::int64_t, std::int64_t) { raise_exceptions(); });
    parallel_for(1, 1, nullptr, [](std::int64_t, std::int64_t) { raise_exceptions(); });
    if (!inside) raise_exceptions();  // after the operation the traps that the caller enabled are active again
    return 7;
  };
  EXPECT_EQ(status_of_child([&] { return with_traps(true); }), 7);
#ifdef __x86_64__  // the test is for x86-64, because other processors may not support traps
  EXPECT_EQ(status_of_child([&] { return with_traps(false); }), -1);
#endif
}
#endif

// The test counts threads (/proc/self/task) in forked children, because a child starts with a single thread.
TEST_F(ParallelFor, NoThreadIsMadeBeforeItIsNeeded) {
  if (kThreadSanitizer) GTEST_SKIP();
  EXPECT_EQ(status_of_child([] {
              if (threads_of_this_process() != 1) return 1;
              visits(100, 100);
              set_num_threads(1);
              visits(100, 1);
              if (threads_of_this_process() != 1) return 2;
              set_num_threads(3);
              visits(100, 1);
              return threads_of_this_process() == 3 ? 0 : 3;
            }),
            0);
}

TEST_F(ParallelFor, AForkedChildComputesInParallel) {
  if (kThreadSanitizer) GTEST_SKIP();
  ASSERT_TRUE(two_pieces_meet());
  EXPECT_EQ(status_of_child([] { return two_pieces_meet() && two_pieces_meet() ? 0 : 1; }), 0);
  EXPECT_TRUE(two_pieces_meet()) << "in the parent";
}

TEST_F(ParallelFor, AChildOfAChildComputes) {
  if (kThreadSanitizer) GTEST_SKIP();
  ASSERT_TRUE(two_pieces_meet());
  EXPECT_EQ(status_of_child([] { return two_pieces_meet() ? status_of_child([] { return two_pieces_meet() ? 0 : 1; }) : 2; }), 0);
}

// A fork must be safe whatever other threads do at that moment. They may for example hold locks.
TEST_F(ParallelFor, AForkWhileOthersComputeDoesNotHang) {
  if (kThreadSanitizer) GTEST_SKIP();
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) visits(64, 1);
  });
  for (int repeat = 0; repeat < 200 && !HasFailure(); ++repeat) {
    visits(8, 1);
    EXPECT_EQ(status_of_child([] {
                for (const int seen : visits(64, 1)) {
                  if (seen != 1) return 1;
                }
                return 0;
              }),
              0)
        << "fork " << repeat;
  }
  done = true;
  other.join();
}

// exit() in the child runs the destructors. They may not wait for threads that exist only in the parent.
TEST_F(ParallelFor, AForkedChildMayExit) {
  if (kThreadSanitizer) GTEST_SKIP();
  ASSERT_TRUE(two_pieces_meet());
  EXPECT_EQ(status_of_child([]() -> int { std::exit(0); }), 0) << "before it computes";
  EXPECT_EQ(status_of_child([]() -> int { std::exit(two_pieces_meet() ? 0 : 1); }), 0) << "after it computed";
}

TEST(NumThreads, IsWhatTheProcessMayRunOn) {
  EXPECT_GE(usable_processors(), 1);
  for (const test::KnownMachine& known : test::kMachines) {
    describe_machine(&known.machine);
    EXPECT_EQ(usable_processors(), known.machine.processors);
  }
  describe_machine(nullptr);
}

TEST(NumThreads, OfEachMachineCoverEverything) {
  test::for_each_machine([](const DescribedMachine& machine) {
    EXPECT_EQ(num_threads(), machine.processors);
    for (const std::int64_t count : {1, 2, 3, 63, 64, 65, 1000}) EXPECT_THAT(visits(count, 1), Each(1)) << count;
  });
}

TEST(NumThreads, OfNoneIsRefused) {
  for (const int count : {0, -3}) {
    try {
      set_num_threads(count);
      ADD_FAILURE() << "accepted " << count;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr(std::to_string(count)));
    }
  }
}

TEST(Parallel, PiecesOfTheCallerAreThoseOfTheCaller) {
  const std::int64_t bounds[] = {0, 3, 4, 10};
  std::mutex mutex;
  std::set<std::pair<std::int64_t, std::int64_t>> pieces;
  parallel_pieces(bounds, nullptr, [&](std::int64_t first, std::int64_t last) {
    const std::lock_guard lock(mutex);
    pieces.insert({first, last});
  });
  EXPECT_EQ(pieces, (std::set<std::pair<std::int64_t, std::int64_t>>{{0, 3}, {3, 4}, {4, 10}}));
}

TEST(Parallel, LongestThreadTakesAPieceAsSoonAsItIsFree) {
  const double costs[] = {4, 3, 3, 2, 2};
  EXPECT_EQ(longest_thread(costs, 1), 14);
  EXPECT_EQ(longest_thread(costs, 2), 8);  // costs of the pieces: one thread takes 4 + 2 + 2, the other 3 + 3
  EXPECT_EQ(longest_thread(costs, 3), 5);  // costs of the pieces: the threads take 4, 3 + 2 and 3 + 2
  EXPECT_EQ(longest_thread(costs, 9), 4);
  EXPECT_EQ(longest_thread({}, 9), 0);
}

TEST(Parallel, LongestShareIsThatOfParallelFor) {
  EXPECT_EQ(longest_share(0, 1, 4), 0);
  EXPECT_EQ(longest_share(100, 1, 1), 100);
  EXPECT_EQ(longest_share(128, 1, 64), 2);
  EXPECT_EQ(longest_share(100, 1, 64), 2);
  EXPECT_EQ(longest_share(100, 51, 4), 100);  // one piece
  EXPECT_EQ(longest_share(17, 1, 4), 5);      // 16 pieces, one of 2 indices and 15 of 1: the thread with the long piece takes three more
}

}  // namespace
}  // namespace polyhead
