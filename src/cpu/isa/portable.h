// The instruction set portable: only instructions that every machine of the architecture has, all of them chosen by the compiler.
#pragma once

#include "cpu/isa/base.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr bool kFused = false, kHasElementary = false, kHasAmx = false;
using generic::AmxTiles, generic::interleave_halves, generic::multiply_bf16_pairs, generic::narrow_halves, generic::zip_halves;
using generic::store_fence, generic::fraction, generic::lanes_above, generic::load_bytes, generic::load_shorts, generic::look_up, generic::multiply_add, generic::multiply_words,
    generic::reciprocal_guess, generic::times_power_of_two, generic::stream_vector, generic::where_bytes, generic::widen_halves;

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
