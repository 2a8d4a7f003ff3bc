// Cache sizes and processor count of the machine, from which the library chooses block sizes. A test can replace them, to run as if on another machine.
#pragma once

#include <cstdint>

namespace polyhead::inline internal {

// The caches and the processors of a machine. A size of 0 bytes means that this cache level is missing or not known.
struct DescribedMachine {
  // Sizes in bytes of one core's first-level data cache, and of the second-level and third-level caches.
  std::int64_t data_bytes = 0, second_bytes = 0, third_bytes = 0;
  int processors = 1;
};

// Makes the library use `machine` instead of what processor and operating system report; nullptr ends the replacement. Only tests call this function, while no
// operation runs. The pointer is stored, so *machine must live until the replacement ends. The class in tests/support/machines.h sets and resets the replacement.
void describe_machine(const DescribedMachine* machine);
const DescribedMachine* described_machine();

}  // namespace polyhead::inline internal
