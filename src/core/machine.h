// What the library asks of the machine, as numbers that a test can describe in place of the machine it runs on.
#pragma once

#include <cstdint>

namespace polyhead::inline internal {

// Caches and processors. 0 bytes: that level is missing or not known.
struct DescribedMachine {
  std::int64_t data_bytes = 0, second_bytes = 0, third_bytes = 0;  // of one core's first-level data cache, its second level, and the third
  int processors = 1;
};

// The description that replaces what processor and operating system report; nullptr: none. Only tests call describe_machine(), and not while
// an operation runs; `machine` is kept and not copied. tests/support/machines.h describes and undoes it.
void describe_machine(const DescribedMachine* machine);
const DescribedMachine* described_machine();

}  // namespace polyhead::inline internal
