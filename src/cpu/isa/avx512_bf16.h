// The instruction set avx512_bf16: AVX-512 with an instruction that multiplies bfloat16 pairs.
#pragma once

#include "cpu/isa/avx512_bf16_pairs.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr bool kHasAmx = false;
using generic::AmxTiles;

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
