// Which keys a row has, and everything between the product <q, k> and its score. For kernel sources only.
#pragma once

#include "cpu/elementary.h"
#include "cpu/sdpa/task.h"
#include "cpu/storage.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
inline constexpr T kInfinity = static_cast<T>(__builtin_inff());

POLYHEAD_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
POLYHEAD_INLINE std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
POLYHEAD_INLINE std::int64_t round_up(std::int64_t x, std::int64_t unit) { return (x + unit - 1) / unit * unit; }

template <class T>
POLYHEAD_INLINE void clear(T* to, std::int64_t first, std::int64_t last) {
  for (std::int64_t i = first; i < last; ++i) to[i] = 0;
}

struct Row {
  std::int64_t number, head, query;
};

// Keys [first, last) that the row may have before dense masks.
struct Span {
  std::int64_t first, last;
  bool empty() const { return last <= first; }
};

POLYHEAD_INLINE RowKind kind_of(const HeadGroup& group, const Row& row) {
  return group.kinds == nullptr ? RowKind::normal : group.kinds[row.number];
}

POLYHEAD_INLINE Span span_of(const HeadGroup& group, const Row& row) {
  Span span{0, group.keys};
  if (kind_of(group, row) != RowKind::normal) return span;
  if (group.banded) span = {larger(0, row.query + group.lower), smaller(group.keys, row.query + group.upper)};
  if (group.lengths != nullptr) span.last = smaller(span.last, group.lengths[group.length_per_query ? row.query : 0]);
  return span;
}

template <class T>
POLYHEAD_INLINE const T* row_of(const Plane& plane, const T* data, const Row& row) {
  return data + row.head * plane.head + row.query * plane.row;
}

// Whether the dense masks keep the pair; the row's span is not asked.
POLYHEAD_INLINE bool masks_keep(const HeadGroup& group, const Row& row, std::int64_t key) {
  if (kind_of(group, row) != RowKind::normal) return true;
  for (int i = 0; i < group.mask_count; ++i) {
    const MaskPlane& mask = group.masks[i];
    const std::uint8_t byte = row_of(mask, static_cast<const std::uint8_t*>(mask.data), row)[key * mask.column];
    if ((byte != 0) != mask.attend) return false;
  }
  return true;
}

// A row whose sum is not finite gives it to each of its kept keys, and 0 to the masked ones: a NaN is not their business.
template <class T>
POLYHEAD_INLINE void spread_spoilt(const HeadGroup& group, const Row& row, Span own, T sum, T* x) {
  for (std::int64_t s = own.first; s < own.last; ++s) x[s] = masks_keep(group, row, s) ? sum : T{0};
}

// to[i] = (bytes of the row's keys first + i) for i in [low, high).
POLYHEAD_INLINE const std::uint8_t* row_bytes(const Plane& plane, const Row& row, std::int64_t first, std::int64_t low, std::int64_t high, std::uint8_t* to) {
  const std::uint8_t* bytes = row_of(plane, static_cast<const std::uint8_t*>(plane.data), row) + first * plane.column;
  if (plane.column == 1) return bytes;
  for (std::int64_t i = low; i < high; ++i) to[i] = bytes[i * plane.column];
  return to;
}

// x[i] = factor x[i] + the row's bias
template <class T, class Storage>
POLYHEAD_INLINE void add_row(const Storage* from, std::int64_t stride, std::int64_t low, std::int64_t high, T factor, T* x) {
  if (stride == 1) {
    std::int64_t i = low;
    if constexpr (std::is_same_v<T, Storage>) {
      for (; i + kLanes<T> <= high; i += kLanes<T>) store_vector<T>(load_vector(x + i) * factor + load_vector(from + i), x + i);
    }
    for (; i < high; ++i) x[i] = x[i] * factor + widen(from[i]);
  } else if (stride == -1) {  // a relative-position table
    for (std::int64_t i = low; i < high; ++i) x[i] = x[i] * factor + widen(from[-i]);
  } else {
    for (std::int64_t i = low; i < high; ++i) x[i] = x[i] * factor + widen(from[i * stride]);
  }
}

// The scale of the scores as sign 2^n factor with 1 <= factor < 2. The power multiplies q or k, which rounds nothing; the factor is left to
// whoever reads the scores next.
template <class T>
struct ScoreScale {
  explicit ScoreScale(double scale) {
    if (scale == 0) {
      power = 0;
      return;
    }
    int exponent = 0;
    const double fraction = __builtin_frexp(scale < 0 ? -scale : scale, &exponent);
    power = static_cast<T>(__builtin_ldexp(scale < 0 ? -1 : 1, exponent - 1));
    factor = static_cast<T>(2 * fraction);
    scaled = ExpFactor<T>(factor);
  }
  // For scores of which `left` is still to be multiplied.
  const ExpFactor<T>& exp(T left) const { return left == factor ? scaled : natural; }

  T power = 1, factor = 1;
  ExpFactor<T> scaled{1}, natural{1};  // of scores / factor; of scores
};

// From products x, <q,k> = factor x after scaling, to score = softcap(factor x) + bias for the keys first + [low, high) of a row; -infinity
// where a dense mask has none, and in the rest of the vectors that this range touches. A masked score is replaced and not added to: it may
// be NaN. Returns what is still to be multiplied: factor, or 1. `slope`, if given, becomes 1 - tanh^2. `bytes` is scratch of a key block.
template <class T>
T finish_scores(const HeadGroup& group, const Row& row, T factor, std::int64_t first, std::int64_t low, std::int64_t high, T* x, T* slope,
                std::uint8_t* bytes) {
  constexpr int kWidth = kLanes<T>;
  const std::int64_t low_vector = low / kWidth * kWidth, high_vector = round_up(high, kWidth);
  const RowKind kind = kind_of(group, row);
  if (group.softcap > 0) {
    const T cap = static_cast<T>(group.softcap), inverse = static_cast<T>(static_cast<double>(factor) / group.softcap);
    for (std::int64_t i = low_vector; i < high_vector; i += kWidth) {
      const Vector<T> bent = tanh<T>(load_vector(x + i) * inverse);
      store_vector<T>(bent * cap, x + i);
      if (slope != nullptr) store_vector<T>(T{1} - bent * bent, slope + i);
    }
    factor = 1;
  }
  if (kind == RowKind::uniform) {
    for (std::int64_t i = low; i < high; ++i) x[i] = 0;
  } else if (group.bias.data != nullptr) {
    with_storage<T>(group.dtype, group.bias.data, [&](auto* data) {
      add_row(row_of(group.bias, data, row) + first * group.bias.column, group.bias.column, low, high, factor, x);
    });
  }
  if (group.bias.data != nullptr) factor = 1;  // for every row alike
  for (int i = 0; i < group.mask_count && kind == RowKind::normal; ++i) {
    const MaskPlane& mask = group.masks[i];
    const std::uint8_t* kept = row_bytes(mask, row, first, low, high, bytes);
    std::int64_t s = low;
    for (; s + kWidth <= high; s += kWidth) store_vector<T>(where_bytes<T>(kept + s, mask.attend, load_vector(x + s), -kInfinity<T>), x + s);
    for (; s < high; ++s) x[s] = (kept[s] != 0) == mask.attend ? x[s] : -kInfinity<T>;
  }
  for (std::int64_t i = low_vector; i < low; ++i) x[i] = -kInfinity<T>;
  for (std::int64_t i = high; i < high_vector; ++i) x[i] = -kInfinity<T>;
  return factor;
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
