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
#elif defined(__wasm__)
inline constexpr std::string_view kArchitecture = "wasm32";
#elif defined(__riscv)
inline constexpr std::string_view kArchitecture = "riscv";
#else
inline constexpr std::string_view kArchitecture = "other";
#endif

std::vector<InstructionSet> instruction_sets();

// Requests the memory of AMX tiles from Linux for every thread of this process. Without permission, the first instruction on tiles ends the process. Linux
// refuses if the signal stack of a thread is too small for the tiles; after permission, it refuses signal stacks of that size. So call this function only if
// tiles will be used (Linux, Documentation/arch/x86/xstate.rst). Returns the reason of a refusal, or an empty text.
std::string request_amx_permission();

std::string processor_name();    // empty if unknown
std::string processor_vendor();  // for example "GenuineIntel"; empty if unknown

}  // namespace polyhead::cpu
