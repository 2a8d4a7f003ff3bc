#include "polyhead/workspace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/parameter_cache.h"
#include "support/child_process.h"
#include "support/compare.h"

namespace {

// A thread that sets hold_next_allocation waits inside its next allocation while `holding` is true.
thread_local bool hold_next_allocation = false;
std::atomic<bool> holding{false};

}  // namespace

void* operator new(std::size_t bytes) {
  if (std::exchange(hold_next_allocation, false)) {
    for (holding = true; holding;) std::this_thread::yield();
  }
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace polyhead::test {
namespace {

constexpr std::int64_t kMany = 1 << 20;

const void* place_of(const Tensor& tensor) { return tensor.view().data(); }

TEST(Workspace, MemoryOfADestroyedTensorServesTheNextOne) {
  const Workspace workspace;
  const void* first = place_of(workspace.tensor(DType::f32, {kMany}));
  EXPECT_EQ(workspace.idle_bytes(), 4 * kMany);
  Tensor again = workspace.tensor(DType::f64, {kMany / 4, 2});  // has another dtype and shape than the destroyed tensor, but the same number of bytes
  EXPECT_EQ(place_of(again), first);
  EXPECT_EQ(again.shape(), (Shape{kMany / 4, 2}));
  EXPECT_EQ(workspace.idle_bytes(), 0);
}

TEST(Workspace, TensorsInUseShareNoMemory) {
  const Workspace workspace;
  { const Tensor once = workspace.tensor(DType::f32, {kMany}); }
  Tensor a = workspace.tensor(DType::f32, {kMany}), b = workspace.tensor(DType::f32, {kMany});
  fill(a, 1);
  fill(b, 2);
  EXPECT_EQ(a.data<float>()[kMany - 1], 1);
  EXPECT_EQ(b.data<float>()[0], 2);
}

TEST(Workspace, IdleMemoryIsBoundedByThePeakInUse) {
  const Workspace workspace;
  for (std::int64_t count = kMany / 8; count <= kMany; count += kMany / 8) {  // each tensor is larger than the earlier tensors, so it cannot reuse their memory
    const void* place = place_of(workspace.tensor(DType::u8, {count}));
    EXPECT_LE(workspace.idle_bytes(), count * 3 / 2);
    EXPECT_EQ(place_of(workspace.tensor(DType::u8, {count})), place);  // the pool drops its oldest memory blocks, not this newest one
  }
  EXPECT_GE(workspace.idle_bytes(), kMany);
}

TEST(Workspace, ClearGivesEverythingBack) {
  const Workspace workspace;
  Tensor kept = workspace.tensor(DType::u8, {kMany});
  { const Tensor other = workspace.tensor(DType::u8, {kMany}); }
  workspace.clear();
  EXPECT_EQ(workspace.idle_bytes(), 0);
  fill(kept, 3);  // clear() does not free the memory of a tensor in use
  kept = Tensor();
  EXPECT_EQ(workspace.idle_bytes(), kMany);
}

TEST(Workspace, ATensorOutlivesItsWorkspace) {
  std::optional<Workspace> workspace(std::in_place);
  Tensor tensor = workspace->tensor(DType::f32, {kMany});
  workspace.reset();
  fill(tensor, 5);
  EXPECT_EQ(tensor.data<float>()[kMany - 1], 5);
}

TEST(Workspace, SeveralThreadsMayUseOne) {
  const Workspace workspace;
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&workspace, id] {
      for (int round = 0; round < 200; ++round) {
        Tensor tensor = workspace.tensor(DType::f32, {8192 + 100 * (round % 7)});
        fill(tensor, id);
        for (std::int64_t i = 0; i < tensor.numel(); i += 997) ASSERT_EQ(tensor.data<float>()[i], static_cast<float>(id));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Two threads free their tensors at the same time, and one of them cannot get the lock. The memory of its tensor must not count as in use for ever. Otherwise
// the bound on idle memory would grow each time.
TEST(Workspace, IdleMemoryIsBoundedAlsoWhereTheLockIsMissed) {
  const Workspace workspace;
  for (int round = 0; round < 3; ++round) {
    Tensor tensor = workspace.tensor(DType::u8, {kMany}), lost = workspace.tensor(DType::u8, {kMany});
    std::thread holder([&] {
      hold_next_allocation = true;  // the next allocation happens while this thread holds the lock
      tensor = Tensor();
    });
    while (!holding) std::this_thread::yield();
    lost = Tensor();
    holding = false;
    holder.join();
  }
  workspace.clear();
  for (std::int64_t count = kMany / 8; count <= kMany; count += kMany / 8) {
    { const Tensor once = workspace.tensor(DType::u8, {count}); }
    EXPECT_LE(workspace.idle_bytes(), count * 3 / 2);
  }
}

// The fork may happen while another thread holds the workspace's lock. That thread does not exist in the child, so no thread there releases the lock.
TEST(Workspace, AForkWhileOthersUseItDoesNotHang) {
  const Workspace workspace;
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) (void)workspace.tensor(DType::f32, {kMany});
  });
  for (int repeat = 0; repeat < 200 && !HasFailure(); ++repeat) {
    EXPECT_EQ(status_of_child([&] { return workspace.tensor(DType::f32, {8192}).numel() == 8192 ? 0 : 1; }), 0) << "fork " << repeat;
  }
  done = true;
  other.join();
}

TEST(Workspace, CachedResultsOfAParameterAreKeptUntilClear) {
  const Workspace workspace(Parameters::constant);
  const int a = 0, b = 0;
  int made = 0;
  const auto ask = [&](const Tensor& parameter, const void* use) {
    return *std::static_pointer_cast<const int>(
        cached_parameter(workspace, parameter, use, [&] { return std::make_shared<const int>(++made); }));
  };
  Tensor parameter(DType::f32, {4, 4}), other(DType::f32, {4, 4});
  EXPECT_EQ(ask(parameter, &a), 1);
  EXPECT_EQ(ask(parameter, &a), 1);
  EXPECT_EQ(ask(parameter, &b), 2);  // the same parameter with another `use` is computed separately
  EXPECT_EQ(ask(other, &a), 3);
  EXPECT_EQ(ask(parameter, &a), 1);
  EXPECT_EQ(ask(Tensor::share(parameter.view().reshape({2, 8}), parameter.owner()), &a), 4);  // another view of the same memory has its own cache entry
  workspace.clear();
  EXPECT_EQ(ask(parameter, &a), 5);
}

// A cached result keeps its parameter alive. Otherwise a new parameter could get the same address and hit the old cache entry.
TEST(Workspace, ACachedResultKeepsItsParameterAlive) {
  const Workspace workspace(Parameters::constant);
  const int use = 0;
  Tensor parameter(DType::f32, {4, 4});
  const std::weak_ptr<void> memory = parameter.owner();
  cached_parameter(workspace, parameter, &use, [] { return std::make_shared<const int>(1); });
  parameter = Tensor();
  EXPECT_FALSE(memory.expired());
  workspace.clear();
  EXPECT_TRUE(memory.expired());
}

TEST(Workspace, NothingIsCachedForAParameterWithoutAnOwner) {
  const Workspace workspace(Parameters::constant);
  const int use = 0;
  float memory[16] = {};
  int made = 0;
  for (int i = 1; i <= 2; ++i) {
    cached_parameter(workspace, Tensor::share(TensorView(memory, {4, 4}), nullptr), &use,
                     [&] { return std::make_shared<const int>(++made); });
    EXPECT_EQ(made, i);
  }
}

TEST(Workspace, AParameterAllocatedInTheWorkspaceIsFreedWithIt) {
  std::optional<Workspace> workspace(Parameters::constant);
  const int use = 0;
  Tensor parameter = workspace->tensor(DType::f32, {kMany});
  const std::weak_ptr<void> memory = parameter.owner();
  cached_parameter(*workspace, parameter, &use, [] { return std::make_shared<const int>(1); });
  parameter = Tensor();
  EXPECT_FALSE(memory.expired());
  workspace.reset();
  EXPECT_TRUE(memory.expired());
}

TEST(Workspace, ImpossibleShapesAreErrors) {
  const Workspace workspace;
  EXPECT_NE(error_message([&] { workspace.tensor(DType::f32, {-1, 1 << 20}); }), "");
  EXPECT_NE(error_message([&] { workspace.tensor(DType::f64, {std::int64_t{1} << 61}); }), "");
  EXPECT_EQ(workspace.tensor(DType::f32, {0, 3}).numel(), 0);
}

}  // namespace
}  // namespace polyhead::test
