// The instruction set neon of AArch64: 32 registers of 4 float32. Compilers turn the functions that come from the namespace `generic` into vector instructions,
// too.
#pragma once

#include <arm_neon.h>

#include "cpu/isa/base.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr bool kFused = true, kHasElementary = false, kHasAmx = false;
using generic::AmxTiles, generic::interleave_halves, generic::multiply_bf16_pairs, generic::narrow_halves, generic::zip_halves;
using generic::store_fence, generic::fraction, generic::look_up, generic::reciprocal_guess, generic::times_power_of_two,
    generic::stream_vector;

template <class T>
POLYHEAD_INLINE Vector<T> multiply_add(Vector<T> a, Vector<T> b, Vector<T> c) {
  if constexpr (sizeof(T) == 8) {
    return (Vector<T>)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
  } else {
    return (Vector<T>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
  }
}

template <class T>
POLYHEAD_INLINE Vector<T> where_bytes(const std::uint8_t* bytes, bool wanted, Vector<T> x, T other) {
  std::uint32_t four = 0;
  __builtin_memcpy(&four, bytes, static_cast<unsigned>(kLanes<T>));
  const uint16x8_t halves = vmovl_u8(vcreate_u8(four));
  const uint32x4_t words = vmovl_u16(vget_low_u16(halves));
  Vector<Bits<T>> set;
  if constexpr (sizeof(T) == 8) {
    const uint64x2_t lanes = vmovl_u32(vget_low_u32(words));
    set = (Vector<Bits<T>>)vtstq_u64(lanes, lanes);
  } else {
    set = (Vector<Bits<T>>)vtstq_u32(words, words);
  }
  return set == (wanted ? Vector<Bits<T>>{} - 1 : Vector<Bits<T>>{}) ? x : broadcast(other);
}

POLYHEAD_INLINE Vector<std::int32_t> load_shorts(const std::uint16_t* from) { return (Vector<std::int32_t>)vmovl_u16(vld1_u16(from)); }
POLYHEAD_INLINE Vector<std::int32_t> load_bytes(const std::int8_t* from) {
  std::uint32_t four = 0;
  __builtin_memcpy(&four, from, sizeof four);
  return (Vector<std::int32_t>)vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four))));
}

POLYHEAD_INLINE Vector<float> widen_halves(Vector<std::int32_t> halves) {
  return (Vector<float>)vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32((uint32x4_t)halves)));
}

template <class T>
POLYHEAD_INLINE unsigned lanes_above(Vector<T> x, T bound) {
  return vmaxvq_u32((uint32x4_t)(x > bound));
}

POLYHEAD_INLINE Vector<std::int64_t> multiply_words(Vector<std::int64_t> a, Vector<std::int64_t> b) {
  return (Vector<std::int64_t>)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
