// Copies of q, k and v in the order in which the tiles read them. For kernel sources only.
#pragma once

#include "cpu/sdpa/task.h"
#include "cpu/storage.h"
#include "cpu/tile.h"
#include "cpu/transpose.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
inline constexpr int kPanelKeys = kTileVectors * kLanes<T>;  // the width of a tile

// The scales of int8 rows; absent for other types.
template <class T>
struct RowScales {
  const float* data = nullptr;
  std::int64_t stride = 0;

  RowScales() = default;
  RowScales(const Plane& plane, std::int64_t first) : data(static_cast<const float*>(plane.data)), stride(plane.row) {
    if (data != nullptr) data += first * stride;
  }
  // The factor of a row: its scale, or `otherwise`.
  T of(std::int64_t row, T otherwise) const { return data != nullptr ? static_cast<T>(data[row * stride]) : otherwise; }
};

// Packs the first elements of kLanes rows of narrow storage, whose columns are neighbours, times their scales and factor. A word of 32 bits
// holds two or four of a row's elements: words are transposed, then widened. Returns the number of elements packed.
template <class Storage>
std::int64_t pack_words(const Storage* from, std::int64_t row_stride, std::int64_t width, float factor, const RowScales<float>& scales,
                        std::int64_t key, std::int64_t ahead, float* to) {
  constexpr int kWidth = kLanes<float>, kPanel = kPanelKeys<float>, kElements = 4 / static_cast<int>(sizeof(Storage)), kStep = kWidth * kElements;
  constexpr bool kScaled = std::is_same_v<Storage, std::int8_t>;
  Vector<float> scale{};
  if constexpr (kScaled) {
    for (int i = 0; i < kWidth; ++i) scale[i] = scales.of(key + i, 1.0F);
  }
  std::int64_t d = 0;
  for (; d + kStep <= width; d += kStep) {
    Vector<std::int32_t> words[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      if (ahead > 0) __builtin_prefetch(from + (i + ahead) * row_stride + d);
      __builtin_memcpy(&words[i], from + i * row_stride + d, sizeof words[i]);
    }
    transpose<std::int32_t>(words);
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      [&]<int... e>(std::integer_sequence<int, e...>) __attribute__((always_inline)) {
        const auto store = [&](int element, Vector<float> x) __attribute__((always_inline)) {
          if constexpr (kScaled) x *= scale;
          store_vector<float>(x * factor, to + (d + i * kElements + element) * kPanel);
        };
        (store(e, Narrow<Storage>::template of_word<e>(words[i])), ...);
      }(std::make_integer_sequence<int, kElements>{});
    }
  }
  return d;
}

// Packs `count` rows of `width` elements, times their scales and factor, into panels [panel, width, kPanelKeys]. The last vector of keys is
// padded with 0. `lines` is scratch of kLanes rows. Of `available` rows those after the first `count` are read next.
template <class T, class Storage>
void pack_transposed(const Storage* from, std::int64_t row_stride, std::int64_t column_stride, int count, std::int64_t width, T factor,
                     T* lines, T* panels, const RowScales<T>& scales = {}, std::int64_t available = 0) {
  constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;
  available = available > count ? available : count;
  for (int key = 0; key < count; key += kWidth) {
    T* to = panels + key / kPanel * (width * kPanel) + key % kPanel;
    std::int64_t done = 0;
    if constexpr (std::is_same_v<Storage, bf16> || std::is_same_v<Storage, std::int8_t>) {
      if (column_stride == 1 && key + kWidth <= count) {
        constexpr int kAhead = 32;
        done = pack_words(from + key * row_stride, row_stride, width, factor, scales, key, key + kAhead + kWidth <= available ? kAhead : 0, to);
        if (done == width) continue;
      }
    }
    const T* rows[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      T* line = lines + i * width;
      const Storage* row = from + (key + i) * row_stride;
      if (key + i >= count) {
        for (std::int64_t d = done; d < width; ++d) line[d] = 0;
        rows[i] = line;
      } else if (std::is_same_v<T, Storage> && column_stride == 1) {
        rows[i] = reinterpret_cast<const T*>(row);
      } else {
        widen_row<T>(row + done * column_stride, column_stride, width - done, scales.of(key + i, T{1}), line + done);
        rows[i] = line;
      }
    }
    std::int64_t d = done;
    for (; d + kWidth <= width; d += kWidth) {
      // Prefetch the next rows: the hardware prefetcher follows fewer streams than a vector has lanes.
      if (std::is_same_v<T, Storage> && column_stride == 1 && key + 2 * kWidth <= available) {
        for (int i = 0; i < kWidth; ++i) __builtin_prefetch(rows[i] + kWidth * row_stride + d);
      }
      transpose<T>(rows, d, factor, to + d * kPanel, kPanel);
    }
    for (; d < width; ++d) {
      for (int i = 0; i < kWidth; ++i) to[d * kPanel + i] = rows[i][d] * factor;
    }
  }
}

// Calls f(panel, begin, vectors) for each panel that has keys of [first, last). `panel` is its first key; the keys lie in `vectors` whole
// vectors from key `begin` on.
template <class T, class F>
POLYHEAD_INLINE void for_each_panel(std::int64_t first, std::int64_t last, const F& f) {
  constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;
  for (std::int64_t panel = first / kPanel * kPanel; panel < last; panel += kPanel) {
    const std::int64_t begin = panel < first ? first / kWidth * kWidth : panel;
    const std::int64_t end = panel + kPanel < last ? panel + kPanel : (last + kWidth - 1) / kWidth * kWidth;
    f(panel, begin, static_cast<int>((end - begin) / kWidth));
  }
}

// Copies `count` rows, times factor or their scales, to [count, padded], with zeros after `width`. Returns whether all elements are finite.
template <class T, class Storage>
bool copy_rows(const Storage* from, std::int64_t row_stride, std::int64_t column_stride, int count, std::int64_t width, std::int64_t padded,
               T factor, T* to, const RowScales<T>& scales = {}) {
  Vector<T> non_finite{};
  T non_finite_rest = 0;
  constexpr int kWidth = kLanes<T>;
  for (int key = 0; key < count; ++key) {
    T* line = to + key * padded;
    const Storage* row = from + key * row_stride;
    std::int64_t d = 0;
    if (std::is_same_v<T, Storage> && column_stride == 1) {
      for (; d + kWidth <= width; d += kWidth) {
        const Vector<T> x = load_vector(reinterpret_cast<const T*>(row) + d) * factor;
        non_finite += x * T{0};
        store_vector<T>(x, line + d);
      }
      for (std::int64_t i = d; i < width; ++i) line[i] = static_cast<T>(widen(row[i])) * factor;
    } else {
      widen_row<T>(row, column_stride, width, scales.of(key, factor), line);
      for (; d + kWidth <= width; d += kWidth) non_finite += load_vector(line + d) * T{0};
    }
    for (; d < width; ++d) non_finite_rest += line[d] * T{0};
    for (; d < padded; ++d) line[d] = 0;
  }
  return sum_of_lanes<T>(non_finite) + non_finite_rest == 0;
}

// Whether every element of contiguous rows is finite.
template <class T>
bool all_finite(const T* from, std::int64_t count) {
  constexpr int kWidth = kLanes<T>;
  Vector<T> non_finite[4] = {};
  T non_finite_rest = 0;
  std::int64_t i = 0;
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) non_finite[j] += load_vector(from + i + j * kWidth) * T{0};
  }
  for (; i < count; ++i) non_finite_rest += from[i] * T{0};
  return sum_of_lanes<T>(non_finite[0] + non_finite[1] + non_finite[2] + non_finite[3]) + non_finite_rest == 0;
}

// Replaces NaN and infinities by 0, because 0 * NaN would reach rows that do not attend to them. add_non_finite() adds them to the rows
// that do.
template <class T>
void zero_non_finite(const T* from, std::int64_t count, T* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] * T{0} == 0 ? from[i] : T{0};
}

// to[d] += own * (factor * (scale * from[d])) for the elements of a row that zero_non_finite() replaced.
template <class T, class Storage>
void add_non_finite(const Storage* from, std::int64_t stride, std::int64_t width, T factor, T* to, T own = 1, T scale = 1) {
  for (std::int64_t d = 0; d < width; ++d) {
    const T x = scale * static_cast<T>(widen(from[d * stride]));
    if (!(x * T{0} == 0)) to[d] += own * (factor * x);
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
