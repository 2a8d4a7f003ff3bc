// The instruction set wasm_simd128: WebAssembly's vectors of 128 bits, which hold 4 float32. WebAssembly has no multiply-add that rounds once on every engine:
// in relaxed SIMD the engine chooses whether it rounds once or twice.
#pragma once

#include <wasm_simd128.h>

#include "cpu/isa/base.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr bool kFused = false, kHasElementary = false, kHasAmx = false;
using generic::AmxTiles, generic::interleave_halves, generic::multiply_bf16_pairs, generic::narrow_halves, generic::zip_halves;
using generic::store_fence, generic::fraction, generic::look_up, generic::multiply_add, generic::reciprocal_guess, generic::times_power_of_two, generic::stream_vector, generic::widen_halves;

template <class T>
POLYHEAD_INLINE Vector<T> where_bytes(const std::uint8_t* bytes, bool wanted, Vector<T> x, T other) {
  std::uint32_t four = 0;
  __builtin_memcpy(&four, bytes, static_cast<unsigned>(kLanes<T>));
  const v128_t words = wasm_u32x4_extend_low_u16x8(wasm_u16x8_extend_low_u8x16(wasm_u32x4_splat(four)));
  Vector<Bits<T>> set;
  if constexpr (sizeof(T) == 8) {
    set = (Vector<Bits<T>>)wasm_i64x2_ne(wasm_u64x2_extend_low_u32x4(words), wasm_i64x2_const_splat(0));
  } else {
    set = (Vector<Bits<T>>)wasm_i32x4_ne(words, wasm_i32x4_const_splat(0));
  }
  return set == (wanted ? Vector<Bits<T>>{} - 1 : Vector<Bits<T>>{}) ? x : broadcast(other);
}

POLYHEAD_INLINE Vector<std::int32_t> load_shorts(const std::uint16_t* from) { return (Vector<std::int32_t>)wasm_u32x4_load16x4(from); }
POLYHEAD_INLINE Vector<std::int32_t> load_bytes(const std::int8_t* from) {
  return (Vector<std::int32_t>)wasm_i32x4_extend_low_i16x8(wasm_i16x8_extend_low_i8x16(wasm_v128_load32_zero(from)));
}

template <class T>
POLYHEAD_INLINE unsigned lanes_above(Vector<T> x, T bound) {
  return wasm_v128_any_true((v128_t)(x > bound)) ? 1 : 0;
}

POLYHEAD_INLINE Vector<std::int64_t> multiply_words(Vector<std::int64_t> a, Vector<std::int64_t> b) {
  const auto lower = [](Vector<std::int64_t> x) __attribute__((always_inline)) { return wasm_i32x4_shuffle((v128_t)x, (v128_t)x, 0, 2, 0, 2); };
  return (Vector<std::int64_t>)wasm_u64x2_extmul_low_u32x4(lower(a), lower(b));
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
