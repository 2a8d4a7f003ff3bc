// Simulated machines. The library chooses block sizes by the caches and the processor count of the machine. With these classes a test runs the library with the caches
// and the processor count of each simulated machine.
#pragma once

#include <gtest/gtest.h>

#include "core/machine.h"
#include "support/thread_count.h"

namespace polyhead::test {

struct KnownMachine {
  const char* name;
  DescribedMachine machine;
};

inline constexpr std::int64_t kKi = 1 << 10, kMi = 1 << 20;
inline constexpr KnownMachine kMachines[] = {
    {"32K, 256K, 8M, 1 processor", {32 * kKi, 256 * kKi, 8 * kMi, 1}},
    {"48K, 2M, 480M, 2 processors", {48 * kKi, 2 * kMi, 480 * kMi, 2}},
    {"32K, 512K, 32M, 3 processors", {32 * kKi, 512 * kKi, 32 * kMi, 3}},
    {"64K, 1M, no third level, 64 processors", {64 * kKi, kMi, 0, 64}},
    {"caches not known, 2 processors", {0, 0, 0, 2}},
};

// While this object lives, the library uses the cache sizes of the given machine, and as many threads as that machine has processors.
class AsIfOn {
 public:
  explicit AsIfOn(const DescribedMachine& machine) : machine_(machine), threads_(machine.processors) { describe_machine(&machine_); }
  ~AsIfOn() { describe_machine(nullptr); }
  AsIfOn(const AsIfOn&) = delete;
  AsIfOn& operator=(const AsIfOn&) = delete;

 private:
  const DescribedMachine machine_;
  ThreadCount threads_;
};

// Calls f(machine) for each simulated machine, while AsIfOn is in effect for it.
template <class F>
void for_each_machine(const F& f) {
  for (const KnownMachine& known : kMachines) {
    SCOPED_TRACE(known.name);
    const AsIfOn guard(known.machine);
    f(known.machine);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace polyhead::test
