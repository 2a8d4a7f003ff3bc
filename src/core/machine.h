// The properties of the machine that the library uses. A test can replace them, to run as if on another machine.
#pragma once

#include <cstdint>

namespace polyhead::inline internal {

// Caches and processors. 0 bytes: that level is missing or not known.
struct DescribedMachine {
  std::int64_t data_bytes = 0, second_bytes = 0, third_bytes = 0;  // sizes of one core's first-level data cache, its second level, and the third level
  int processors = 1;
};

// Replaces what processor and operating system report by `machine`; nullptr ends the replacement. Only tests call this, and not while an operation
// runs. The pointer is stored, so *machine must outlive its use. tests/support/machines.h sets and resets it.
void describe_machine(const DescribedMachine* machine);
const DescribedMachine* described_machine();

}  // namespace polyhead::inline internal
