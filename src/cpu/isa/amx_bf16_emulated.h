// amx_bf16 on processors without AMX, for tests: the same kernels, with tile registers in memory and their product in plain code.
#pragma once

#include "cpu/isa/avx512_bf16_pairs.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr bool kHasAmx = true;
using generic::AmxTiles;

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
