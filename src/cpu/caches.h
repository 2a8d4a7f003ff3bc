// Reads the caches of the machine from the operating system.
#pragma once

#include <string>
#include <vector>

#include "core/machine.h"
#include "polyhead/device.h"

namespace polyhead::cpu {

// Returns the caches that Linux lists in a folder such as /sys/devices/system/cpu/cpu0/cache, in the files index0/level, size, type and shared_cpu_list. A cache
// whose size cannot be read is left out. The result is empty if there is no such folder.
std::vector<CpuCache> listed_caches(const std::string& folder);

std::vector<CpuCache> caches_of(const DescribedMachine& machine);

}  // namespace polyhead::cpu
