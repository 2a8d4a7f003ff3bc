// Vector types and operations of the kernels. The types are vectors of GCC and Clang (`vector_size`): operators act lane by lane, and the compiler chooses the
// instructions. Only kernel sources (*_kernel.cc) include this file; everything is local to the object file of one instruction set.
//
// The namespace `generic` holds plain C++ forms of the operations that some instruction sets can do faster. The header of an instruction set uses the plain form
// of an operation or defines a faster form, so every set has all operations; src/cpu/isa/README.md lists them.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/inline.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
inline constexpr int kLanes = POLYHEAD_VECTOR_BYTES / static_cast<int>(sizeof(T));
inline constexpr int kRegisters = POLYHEAD_VECTOR_REGISTERS;

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(POLYHEAD_VECTOR_BYTES)));
  typedef T unaligned __attribute__((vector_size(POLYHEAD_VECTOR_BYTES), aligned(alignof(T)), may_alias));
};
template <class T>
using Vector = typename VectorOf<T>::type;

// The integer type that is as wide as a lane. Comparisons return vectors of this type: -1 for true, 0 for false.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;

template <class T>
POLYHEAD_INLINE Vector<T> load_vector(const T* from) {
  return *reinterpret_cast<const typename VectorOf<T>::unaligned*>(from);
}
template <class T>
POLYHEAD_INLINE void store_vector(Vector<T> x, T* to) {
  *reinterpret_cast<typename VectorOf<T>::unaligned*>(to) = x;
}
template <class T>
POLYHEAD_INLINE Vector<T> broadcast(T x) {
  // The compiler removes x - 0, which is x for every x. It would keep x + 0, which turns -0 into 0.
  return x - Vector<T>{};
}
// Returns the larger of a and b. If they are equal or one of them is NaN, returns b, as the max instruction of x86 does.
template <class V>
POLYHEAD_INLINE V larger(V a, V b) {
  return a > b ? a : b;
}

template <class T>
POLYHEAD_INLINE Vector<Bits<T>> lane_numbers() {
  Vector<Bits<T>> numbers{};
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i) numbers[i] = i;
  return numbers;
}

// Returns a vector whose lane i is lane kOrder[i] of a and b; lanes of b are counted after those of a.
template <class T, int... kOrder>
POLYHEAD_INLINE Vector<T> shuffle(Vector<T> a, Vector<T> b) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, kOrder...);
#else  // GCC 11
  return __builtin_shuffle(a, b, Vector<Bits<T>>{kOrder...});
#endif
}

// Returns a vector whose lane i is lane i ^ kDistance of x.
template <class T, int kDistance>
POLYHEAD_INLINE Vector<T> swap_lanes(Vector<T> x) {
  return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    return shuffle<T, (i ^ kDistance)...>(x, x);
  }(std::make_integer_sequence<int, kLanes<T>>{});
}

// Number of lanes in a block of 16 bytes. Shuffles of x86 within such blocks are faster than shuffles across blocks.
template <class T>
inline constexpr int kBlockLanes = 16 / static_cast<int>(sizeof(T));

// Interleaves lanes of a and b in each block of 16 bytes: a[0] b[0] a[1] b[1] ..., from the lower or (kUpper) the upper half of the block.
template <class T, bool kUpper>
POLYHEAD_INLINE Vector<T> zip_lanes(Vector<T> a, Vector<T> b) {
  constexpr int kCount = kLanes<T>, kBlock = kBlockLanes<T>;
  return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    return shuffle<T, (i / kBlock * kBlock + i % kBlock / 2 + (kUpper ? kBlock / 2 : 0) + i % 2 * kCount)...>(a, b);
  }(std::make_integer_sequence<int, kCount>{});
}

// Returns the even or (kOdd) the odd blocks of 16 bytes of a, followed by the even or odd blocks of b.
template <class T, bool kOdd>
POLYHEAD_INLINE Vector<T> unzip_blocks(Vector<T> a, Vector<T> b) {
  constexpr int kBlock = kBlockLanes<T>;
  return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    return shuffle<T, ((i / kBlock * 2 + (kOdd ? 1 : 0)) * kBlock + i % kBlock)...>(a, b);
  }(std::make_integer_sequence<int, kLanes<T>>{});
}

namespace generic {

// Returns a b + c. If kFused, the result is rounded once.
template <class T>
POLYHEAD_INLINE Vector<T> multiply_add(Vector<T> a, Vector<T> b, Vector<T> c) {
  return a * b + c;
}

// Stores a vector by a non-temporal store, which does not read the cache line first. `to` must be aligned to the vector's size. Other threads can read the data
// only after store_fence().
template <class T>
POLYHEAD_INLINE void stream_vector(Vector<T> x, T* to) {
  store_vector<T>(x, to);
}
POLYHEAD_INLINE void store_fence() {}

// Returns x in the lanes where (byte != 0) == wanted, and `other` in the other lanes.
template <class T>
POLYHEAD_INLINE Vector<T> where_bytes(const std::uint8_t* bytes, bool wanted, Vector<T> x, T other) {
  Vector<Bits<T>> lanes;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i) lanes[i] = bytes[i];
  return (lanes != 0) == (wanted ? Vector<Bits<T>>{} - 1 : Vector<Bits<T>>{}) ? x : broadcast(other);
}

// load_shorts() loads unsigned integers of 16 bits, and load_bytes() signed integers of 8 bits. Both widen them to 32 bits.
POLYHEAD_INLINE Vector<std::int32_t> load_shorts(const std::uint16_t* from) {
  Vector<std::int32_t> lanes;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<float>; ++i) lanes[i] = from[i];
  return lanes;
}
POLYHEAD_INLINE Vector<std::int32_t> load_bytes(const std::int8_t* from) {
  Vector<std::int32_t> lanes;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<float>; ++i) lanes[i] = from[i];
  return lanes;
}
// Converts the float16 in the lower half of each lane to float32; the upper half may hold anything. A multiplication by a power of two corrects the exponent, for
// subnormal numbers too.
POLYHEAD_INLINE Vector<float> widen_halves(Vector<std::int32_t> halves) {
  const Vector<std::int32_t> magnitude = (halves & 0x7fff) << 13, sign = halves << 16 & (1 << 31);
  const Vector<std::int32_t> finite = (Vector<std::int32_t>)((Vector<float>)magnitude * 0x1p112F);
  return (Vector<float>)(((halves & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000 : finite) | sign);
}

// Returns a non-zero number if any lane of x is larger than the bound.
template <class T>
POLYHEAD_INLINE unsigned lanes_above(Vector<T> x, T bound) {
  const auto above = (Vector<std::int64_t>)(x > bound);
  std::int64_t any = 0;
#pragma GCC unroll 8
  for (int i = 0; i < kLanes<std::int64_t>; ++i) any |= above[i];
  return any != 0 ? 1 : 0;
}

// Returns the 64-bit products of the lower halves of the lanes.
POLYHEAD_INLINE Vector<std::int64_t> multiply_words(Vector<std::int64_t> a, Vector<std::int64_t> b) {
  return (a & 0xffffffff) * (b & 0xffffffff);
}

// The next four operations are used only by instruction sets with kHasElementary, in which each of them is one instruction.

// Returns 2^floor(n) x, or 0 for n < least, so that no result is subnormal: arithmetic with subnormal numbers takes a hundred cycles.
POLYHEAD_INLINE Vector<float> times_power_of_two(Vector<float> x, Vector<float> n, float least = -126) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<float>; ++i) x[i] = n[i] < least ? 0 : __builtin_ldexpf(x[i], static_cast<int>(__builtin_floorf(n[i])));
  return x;
}
// Returns x - floor(x).
POLYHEAD_INLINE Vector<float> fraction(Vector<float> x) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<float>; ++i) x[i] -= __builtin_floorf(x[i]);
  return x;
}
// Returns 1 / x with a relative error below 2^-14.
template <class T>
POLYHEAD_INLINE Vector<T> reciprocal_guess(Vector<T> x) {
  return 1 / x;
}
// Returns in each lane table[the lowest four bits of the index]. The table must be aligned to 64 bytes.
POLYHEAD_INLINE Vector<float> look_up(const float (&table)[16], Vector<std::int32_t> index) {
  Vector<float> entries{};
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<float>; ++i) entries[i] = table[index[i] & 15];
  return entries;
}

// The rest of this file is used only by kernels that multiply bfloat16 pairs (cpu/bf16_pairs.h). The plain forms of multiply_bf16_pairs() and narrow_halves() may
// round differently from the instructions.

// Returns sum + (lower half of a) (lower half of b) + (upper half of a) (upper half of b) in each lane, where the halves are bfloat16 numbers.
POLYHEAD_INLINE Vector<float> multiply_bf16_pairs(Vector<float> sum, Vector<std::int32_t> a, Vector<std::int32_t> b) {
  sum += (Vector<float>)(a & ~0xffff) * (Vector<float>)(b & ~0xffff);
  return sum + (Vector<float>)(a << 16) * (Vector<float>)(b << 16);
}
// Rounds the lanes of `low` and then those of `high` to bfloat16, and returns them in this order, two in each lane.
POLYHEAD_INLINE Vector<std::int32_t> narrow_halves(Vector<float> low, Vector<float> high) {
  constexpr int kCount = kLanes<float>;
  std::uint16_t halves[2 * kCount];
#pragma GCC unroll 16
  for (int i = 0; i < 2 * kCount; ++i) {
    const float x = i < kCount ? low[i] : high[i - kCount];
    std::uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    halves[i] = static_cast<std::uint16_t>(x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40);
  }
  Vector<std::int32_t> result;
  __builtin_memcpy(&result, halves, sizeof result);
  return result;
}
// Returns the 16-bit halves of x in another order: lane i of the result holds the halves i and kLanes<float> + i of x.
POLYHEAD_INLINE Vector<std::int32_t> zip_halves(Vector<std::int32_t> x) {
  constexpr int kCount = kLanes<float>;
  std::uint16_t halves[2 * kCount], zipped[2 * kCount];
  __builtin_memcpy(halves, &x, sizeof x);
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) zipped[2 * i] = halves[i], zipped[2 * i + 1] = halves[kCount + i];
  __builtin_memcpy(&x, zipped, sizeof x);
  return x;
}

// Interleaves the 16-bit halves of a and b in each block of 16 bytes, from the lower or (kUpper) the upper half of the block.
template <bool kUpper>
POLYHEAD_INLINE Vector<std::int32_t> interleave_halves(Vector<std::int32_t> a, Vector<std::int32_t> b) {
  return zip_lanes<std::int32_t, kUpper>((a & 0xffff) | b << 16, (a >> 16 & 0xffff) | (b & ~0xffff));
}

// Emulates the tile registers of AMX (cpu/isa/amx_bf16.h) in memory. multiply() follows the description of TDPBF16PS (Intel SDM volume 2): the first terms of the
// pairs are summed from 0, and so are the second terms, and both sums are added to the tile; subnormal inputs and results become 0. Products of two bfloat16
// numbers are exact in float32. On processors with AMX, tests compare the bits with those of the instruction.
class AmxTiles {
 public:
  AmxTiles() = default;
  AmxTiles(const AmxTiles&) = delete;

  template <int kTile>
  void zero() {
    __builtin_memset(tiles_[kTile], 0, sizeof tiles_[kTile]);
  }
  template <int kTile>
  void load(const void* from, std::int64_t stride) {
    for (int row = 0; row < 16; ++row) __builtin_memcpy(tiles_[kTile][row], static_cast<const char*>(from) + row * stride, 64);
  }
  template <int kTile>
  void load_once(const void* from, std::int64_t stride) {
    load<kTile>(from, stride);
  }
  template <int kTile>
  void store(void* to, std::int64_t stride) const {
    for (int row = 0; row < 16; ++row) __builtin_memcpy(static_cast<char*>(to) + row * stride, tiles_[kTile][row], 64);
  }
  template <int kSums, int kA, int kB>
  void multiply() {
    multiply(tiles_[kA], tiles_[kB], tiles_[kSums]);
  }

 private:
  using Tile = std::int32_t[16][16];

  // Vectors of 32 bytes, because AVX2 has them. For longer vectors GCC 12 computes comparisons number by number, which took three quarters of the tests' time
  // here.
  using Floats = float __attribute__((vector_size(32)));
  using Words = std::int32_t __attribute__((vector_size(32)));
  using Terms = Floats[16][2];  // the first or the second terms of all pairs of a tile

  static POLYHEAD_INLINE Floats flush(Floats x) {
    const Words bits = (Words)x;
    return (Floats)(bits & (((bits & 0x7f800000) != 0) | (1 << 31)));
  }

  // Separates the terms of the pairs before the loop over all products.
  static POLYHEAD_INLINE void separate(const Tile& pairs, Terms& first, Terms& second) {
    for (int row = 0; row < 16; ++row) {
      Words words[2];
      __builtin_memcpy(words, pairs[row], sizeof words);
      for (int half = 0; half < 2; ++half) first[row][half] = flush((Floats)(words[half] << 16)), second[row][half] = flush((Floats)(words[half] & ~0xffff));
    }
  }

  __attribute__((noinline)) static void multiply(const Tile& a, const Tile& b, Tile& sums) {  // not inlined: inlining would triple the compile time of a kernel
    Terms first_a, second_a, first_b, second_b;
    separate(a, first_a, second_a), separate(b, first_b, second_b);
    for (int row = 0; row < 16; ++row) {
      const float* const first_of_row = (const float*)first_a[row];
      const float* const second_of_row = (const float*)second_a[row];
      for (int half = 0; half < 2; ++half) {
        Floats first{}, second{}, sum;
        for (int k = 0; k < 16; ++k) {
          first = flush(first + first_of_row[k] * first_b[k][half]);
          second = flush(second + second_of_row[k] * second_b[k][half]);
        }
        __builtin_memcpy(&sum, &sums[row][8 * half], sizeof sum);
        sum = flush(flush(sum) + flush(first + second));
        __builtin_memcpy(&sums[row][8 * half], &sum, sizeof sum);
      }
    }
  }

  Tile tiles_[8];
};

}  // namespace generic
}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
