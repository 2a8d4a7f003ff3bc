#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "polyhead/device.h"

namespace polyhead::cpu {

#if defined(__x86_64__)
inline constexpr std::string_view kArchitecture = "x86-64";
#elif defined(__aarch64__)
inline constexpr std::string_view kArchitecture = "aarch64";
#elif defined(__riscv)
inline constexpr std::string_view kArchitecture = "riscv";
#else
inline constexpr std::string_view kArchitecture = "other";
#endif

std::vector<InstructionSet> instruction_sets();
std::string processor_name();  // empty if unknown

}  // namespace polyhead::cpu
