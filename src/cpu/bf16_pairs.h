// Pairs of bfloat16 numbers, the operands of the instructions that multiply bfloat16. A 32-bit word holds the factors of terms 2i and 2i + 1 of a sum, and one
// instruction adds both products to a float32. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/storage.h"
#include "cpu/transpose.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

struct __attribute__((may_alias)) Bf16Pair {
  std::int32_t bits;  // the lower half is the factor of the first of two terms
};

// The type of a vector of factors: a vector of words if B is Bf16Pair, else a vector of T. B is the type of the factors in memory.
template <class T, class B>
using FactorVector = std::conditional_t<std::is_same_v<B, Bf16Pair>, Vector<std::int32_t>, Vector<T>>;

template <class T, class B>
POLYHEAD_INLINE FactorVector<T, B> load_factor(const B* from) {
  if constexpr (std::is_same_v<B, Bf16Pair>) {
    return load_vector(reinterpret_cast<const std::int32_t*>(from));
  } else {
    return load_wide<T>(from);
  }
}

POLYHEAD_INLINE Vector<float> broadcast_factor(float x) { return broadcast(x); }
POLYHEAD_INLINE Vector<double> broadcast_factor(double x) { return broadcast(x); }
POLYHEAD_INLINE Vector<std::int32_t> broadcast_factor(Bf16Pair x) { return broadcast(x.bits); }

// Adds the products of the factors a and b to `sum`.
template <class T>
POLYHEAD_INLINE void add_product(Vector<T>& sum, Vector<T> a, Vector<T> b) {
  sum = multiply_add<T>(a, b, sum);
}
template <class T>
POLYHEAD_INLINE void add_product(Vector<T>& sum, Vector<std::int32_t> a, Vector<std::int32_t> b) {
  sum = multiply_bf16_pairs(sum, a, b);
}

// The number of rows and of pairs of terms in an AMX tile; 1 without AMX. Terms are padded with zeros to whole tiles, and memory is allocated for whole tiles
// of rows.
inline constexpr int kRowBlock = kHasAmx ? 16 : 1, kTermBlock = kHasAmx ? 16 : 1;

// Returns the number of pairs for `terms` terms, padding included.
POLYHEAD_INLINE std::int64_t bf16_pairs_of(std::int64_t terms) { return (terms + 2 * kTermBlock - 1) / (2 * kTermBlock) * kTermBlock; }

POLYHEAD_INLINE Bf16Pair bf16_pair(bf16 first, bf16 second) { return {static_cast<std::int32_t>(first.bits | std::uint32_t{second.bits} << 16)}; }

POLYHEAD_INLINE bool is_finite(bf16 x) { return (x.bits & 0x7f80u) != 0x7f80u; }

// Replaces NaN and infinite halves of words by 0, and sets non_finite in the lanes of such words.
POLYHEAD_INLINE Vector<std::int32_t> finite_halves(Vector<std::int32_t> words, Vector<std::int32_t>& non_finite) {
  const Vector<std::int32_t> exponent = words & 0x7f807f80, low = (exponent & 0xffff) == 0x7f80, high = (exponent >> 16) == 0x7f80;
  non_finite |= low | high;
  return words & ~((low & 0xffff) | (high & ~0xffff));
}

POLYHEAD_INLINE bool any_lane(Vector<std::int32_t> lanes) {
  std::int32_t any = 0;
  for (int i = 0; i < kLanes<float>; ++i) any |= lanes[i];
  return any != 0;
}

// Multiplies a row of `width` elements by `factor`, a power of two, and packs neighbours into pairs. An odd last element is paired with 0.
POLYHEAD_INLINE void pack_bf16_neighbours(const bf16* from, std::int64_t stride, std::int64_t width, float factor, Bf16Pair* to) {
  const auto scaled = [=](bf16 x) __attribute__((always_inline)) {
    bf16 y;
    narrow(widen(x) * factor, &y);
    return y;
  };
  std::int64_t d = 0;
  if (stride == 1) {
    for (; d + 2 * kLanes<float> <= width; d += 2 * kLanes<float>) {
      const Vector<float> low = Narrow<bf16>::load(from + d) * factor, high = Narrow<bf16>::load(from + d + kLanes<float>) * factor;
      store_vector<std::int32_t>(narrow_halves(low, high), &to[d / 2].bits);
    }
  }
  for (; d + 2 <= width; d += 2) to[d / 2] = bf16_pair(scaled(from[d * stride]), scaled(from[(d + 1) * stride]));
  if (d < width) to[d / 2] = bf16_pair(scaled(from[d * stride]), bf16{});
  for (d = (width + 1) / 2; d < bf16_pairs_of(width); ++d) to[d] = {};
}

// Packs `count` rows of `width` elements into pairs [bf16_pairs_of(count), padded]: pair (i, d) holds column d of rows 2i and 2i + 1. Columns after `width` and
// missing rows are 0. NaN and infinities become 0. Returns true if all elements were finite.
POLYHEAD_INLINE bool pack_bf16_rows(const bf16* from, std::int64_t row_stride, std::int64_t column_stride, std::int64_t count, std::int64_t width,
                               std::int64_t padded, Bf16Pair* to) {
  Vector<std::int32_t> non_finite{};
  std::int32_t non_finite_rest = 0;
  for (std::int64_t row = 0; row < count; row += 2, to += padded) {
    const bf16* const first = from + row * row_stride;
    const bf16* const second = row + 1 < count ? first + row_stride : nullptr;
    std::int64_t d = 0;
    if (column_stride == 1) {
      for (; d + kLanes<float> <= width; d += kLanes<float>) {
        Vector<std::int32_t> words = load_shorts(&first[d].bits);
        if (second != nullptr) words |= load_shorts(&second[d].bits) << 16;
        store_vector<std::int32_t>(finite_halves(words, non_finite), &to[d].bits);
      }
    }
    for (; d < width; ++d) {
      bf16 a = first[d * column_stride], b = second == nullptr ? bf16{} : second[d * column_stride];
      if (!is_finite(a)) a = {}, non_finite_rest = 1;
      if (!is_finite(b)) b = {}, non_finite_rest = 1;
      to[d] = bf16_pair(a, b);
    }
    for (; d < padded; ++d) to[d] = {};
  }
  for (std::int64_t pair = (count + 1) / 2; pair < bf16_pairs_of(count); ++pair, to += padded) {
    for (std::int64_t d = 0; d < padded; ++d) to[d] = {};
  }
  return non_finite_rest == 0 && !any_lane(non_finite);
}

// Packs `count` rows (keys) into panels [panel, pair, key of the panel], where pair i of a key holds its elements 2i and 2i + 1. The last vector of keys is
// padded with 0.
inline void pack_bf16_transposed(const bf16* from, std::int64_t row_stride, std::int64_t column_stride, std::int64_t count, std::int64_t width,
                            int panel_rows, Bf16Pair* panels) {
  constexpr int kWidth = kLanes<float>;
  const std::int64_t pairs = bf16_pairs_of(width);
  for (std::int64_t row = 0; row < count; row += kWidth) {
    Bf16Pair* const to = panels + row / panel_rows * (pairs * panel_rows) + row % panel_rows;
    std::int64_t i = 0;
    if (column_stride == 1 && row + kWidth <= count) {
      for (; 2 * (i + kWidth) <= width; i += kWidth) {
        Vector<std::int32_t> x[kWidth];
#pragma GCC unroll 16
        for (int r = 0; r < kWidth; ++r) __builtin_memcpy(&x[r], from + (row + r) * row_stride + 2 * i, sizeof x[r]);
        transpose<std::int32_t>(x);
#pragma GCC unroll 16
        for (int r = 0; r < kWidth; ++r) store_vector<std::int32_t>(x[r], &to[(i + r) * panel_rows].bits);
      }
    }
    for (; i < pairs; ++i) {
      for (int r = 0; r < kWidth; ++r) {
        if (row + r >= count || 2 * i >= width) {
          to[i * panel_rows + r] = {};
          continue;
        }
        const bf16* const x = from + (row + r) * row_stride + 2 * i * column_stride;
        to[i * panel_rows + r] = bf16_pair(x[0], 2 * i + 1 < width ? x[column_stride] : bf16{});
      }
    }
  }
}

// Multiplies the whole vectors [begin, end) of a float32 row by `factor`, rounds the products to bfloat16 and packs neighbours into pairs. Returns the sum of the
// rounded elements, whose bits do not depend on zeros before and after the range. The pairs of one vector before `begin` may be written, too.
POLYHEAD_INLINE float round_to_bf16(const float* from, std::int64_t begin, std::int64_t end, float factor, Bf16Pair* to) {
  constexpr std::int64_t kWidth = kLanes<float>;
  const Vector<std::int32_t> ones = broadcast(0x3f803f80);
  Vector<float> sum{};
  for (std::int64_t s = begin / (2 * kWidth) * (2 * kWidth); s < end; s += 2 * kWidth) {
    const Vector<float> low = s < begin ? Vector<float>{} : load_vector(from + s), high = s + kWidth < end ? load_vector(from + s + kWidth) : Vector<float>{};
    const Vector<std::int32_t> pairs = narrow_halves(low * factor, high * factor);
    add_product<float>(sum, pairs, ones);
    store_vector<std::int32_t>(pairs, &to[s / 2].bits);
  }
  return sum_of_lanes<float>(sum);
}

// Rounds two rows of float32 to bfloat16 and packs them into pairs: pair s holds column s of both rows. second == nullptr: the second row is 0.
POLYHEAD_INLINE void round_rows_to_bf16(const float* first, const float* second, std::int64_t begin, std::int64_t end, Bf16Pair* to) {
  for (; begin < end; begin += kLanes<float>) {
    const Vector<float> b = second == nullptr ? Vector<float>{} : load_vector(second + begin);
    store_vector<std::int32_t>(zip_halves(narrow_halves(load_vector(first + begin), b)), &to[begin].bits);
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
