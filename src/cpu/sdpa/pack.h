// Reads rows of k and v from the caller's tensor, and transposes them in registers or into panels. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/task.h"
#include "cpu/storage.h"
#include "cpu/tile.h"
#include "cpu/transpose.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
inline constexpr int kPanelKeys = kTileVectors * kLanes<T>;  // number of keys in a panel, which is the width of a tile

// The scales of int8 rows. data is nullptr for other types.
template <class T>
struct RowScales {
  const float* data = nullptr;
  std::int64_t stride = 0;

  RowScales() = default;
  RowScales(const HeadView& view, std::int64_t first) : data(static_cast<const float*>(view.data)), stride(view.row) {
    if (data != nullptr) data += first * stride;
  }
  // Returns the scale of a row, or `otherwise` if there are no scales.
  T of(std::int64_t row, T otherwise) const { return data != nullptr ? static_cast<T>(data[row * stride]) : otherwise; }
};

// Rows of k or v in the caller's tensor; row 0 begins at `data`. The value of an element is the stored number times the row's scale and times `factor`.
template <class T, class Storage>
struct StoredRows {
  const Storage* data;
  std::int64_t row_stride, column_stride, width;
  T factor;
  RowScales<T> scales;
  std::int64_t available;  // number of rows that exist, and so may be prefetched

  StoredRows(const Storage* rows, const HeadView& view, std::int64_t row_width, std::int64_t rows_from_here, T times,
             const RowScales<T>& row_scales = {})
      : data(rows),
        row_stride(view.row),
        column_stride(view.column),
        width(row_width),
        factor(times),
        scales(row_scales),
        available(rows_from_here) {}
};

// The number of elements of type Storage in a word of 32 bits, or 1 if Storage is the compute type.
template <class T, class Storage>
inline constexpr int kWordElements = static_cast<int>(sizeof(T) / sizeof(Storage));

// Transposes kLanes contiguous rows from row `first` on. Calls f(i, x) for the words i = 0, 1, ..., where x has word i of each row. If a word is an element of
// T, it is multiplied by rows.factor. Returns the number of words for which f was called. The words at the end that do not fill a vector are left to the
// caller.
template <class T, class Storage, class F>
POLYHEAD_INLINE std::int64_t transpose_words(const StoredRows<T, Storage>& rows, std::int64_t first, const F& f) {
  constexpr int kWidth = kLanes<T>, kElements = kWordElements<T, Storage>;
  using Word = std::conditional_t<kElements == 1, T, std::int32_t>;
  // Prefetches rows in two steps: rows that are 32 KiB ahead from memory into the second-level cache, and the next rows from the second-level cache into the
  // first. The hardware prefetcher cannot do this, because it follows fewer rows than a vector has lanes.
  constexpr std::int64_t kFarBytes = 32768;
  const std::int64_t near = kWidth, far = kFarBytes / larger(1, rows.width * static_cast<std::int64_t>(sizeof(Storage)));
  const bool fetches_near = first + near + kWidth <= rows.available, fetches_far = first + far + kWidth <= rows.available;
  const Storage* const from = rows.data + first * rows.row_stride;
  std::int64_t word = 0;
  for (; (word + kWidth) * kElements <= rows.width; word += kWidth) {
    Vector<Word> x[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      const Storage* const row = from + i * rows.row_stride + word * kElements;
      __builtin_memcpy(&x[i], row, sizeof x[i]);
      if constexpr (kElements == 1) x[i] *= rows.factor;
      if (fetches_near) __builtin_prefetch(row + near * rows.row_stride);
      if (fetches_far) __builtin_prefetch(row + far * rows.row_stride, 0, 2);
    }
    transpose<Word>(x);
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) f(word + i, x[i]);
  }
  return word;
}

// Transposes kLanes contiguous rows from row `first` on. Calls f(d, x) for the elements d = 0, 1, ..., where x has element d of each row. Narrow types are
// transposed as words, which hold several elements. Returns the number of elements for which f was called. The elements at the end that do not fill a vector
// are left to the caller.
template <class T, class Storage, class F>
POLYHEAD_INLINE std::int64_t transpose_rows(const StoredRows<T, Storage>& rows, std::int64_t first, const F& f) {
  constexpr int kWidth = kLanes<T>, kElements = kWordElements<T, Storage>;
  constexpr bool kScaled = std::is_same_v<Storage, std::int8_t>;
  Vector<T> scale{};
  if constexpr (kScaled) {
    for (int i = 0; i < kWidth; ++i) scale[i] = rows.scales.of(first + i, 1) * rows.factor;
  }
  return kElements * transpose_words(rows, first, [&](std::int64_t word, auto x) __attribute__((always_inline)) {
    if constexpr (kElements == 1) {
      f(word, x);
    } else {
      [&]<int... e>(std::integer_sequence<int, e...>) __attribute__((always_inline)) {
        const auto widened = [&](int element, Vector<T> y) __attribute__((always_inline)) {
          f(word * kElements + element, kScaled ? y * scale : y * rows.factor);
        };
        (widened(e, Narrow<Storage>::template of_word<e>(x)), ...);
      }(std::make_integer_sequence<int, kElements>{});
    }
  });
}

// Packs `count` rows (keys) into panels [panel, width, kPanelKeys]. The last vector of keys is padded with 0. `lines` is scratch for kLanes rows.
template <class T, class Storage>
void pack_transposed(const StoredRows<T, Storage>& from, int count, T* lines, T* panels) {
  constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;
  const std::int64_t width = from.width;
  for (int key = 0; key < count; key += kWidth) {
    T* const to = panels + key / kPanel * (width * kPanel) + key % kPanel;
    std::int64_t d = 0;
    if (from.column_stride == 1 && key + kWidth <= count) {
      d = transpose_rows(from, key, [=](std::int64_t i, Vector<T> x) __attribute__((always_inline)) { store_vector<T>(x, to + i * kPanel); });
    }
    if (d == width) continue;
    const T* rows[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      T* const line = lines + i * width;
      rows[i] = line;
      if (key + i >= count) {
        for (std::int64_t e = d; e < width; ++e) line[e] = 0;
      } else {
        const Storage* const row = from.data + (key + i) * from.row_stride + d * from.column_stride;
        widen_row<T>(row, from.column_stride, width - d, from.scales.of(key + i, T{1}) * from.factor, line + d);
      }
    }
    for (; d + kWidth <= width; d += kWidth) transpose<T>(rows, d, to + d * kPanel, kPanel);
    for (; d < width; ++d) {
      for (int i = 0; i < kWidth; ++i) to[d * kPanel + i] = rows[i][d];
    }
  }
}

// Calls f(panel, begin, vectors) for each panel that contains keys of [first, last). `panel` is the first key of the panel. The keys to compute begin at key
// `begin` and fill `vectors` vectors.
template <class T, class F>
POLYHEAD_INLINE void for_each_panel(std::int64_t first, std::int64_t last, const F& f) {
  constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;
  for (std::int64_t panel = first / kPanel * kPanel; panel < last; panel += kPanel) {
    const std::int64_t begin = panel < first ? first / kWidth * kWidth : panel;
    const std::int64_t end = panel + kPanel < last ? panel + kPanel : (last + kWidth - 1) / kWidth * kWidth;
    f(panel, begin, static_cast<int>((end - begin) / kWidth));
  }
}

// Copies `count` rows, multiplied by `factor` or by the rows' scales, to [count, padded], with zeros after `width`. Returns whether all elements are finite.
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
        non_finite = multiply_add<T>(x, broadcast(T{0}), non_finite);
        store_vector<T>(x, line + d);
      }
      for (std::int64_t i = d; i < width; ++i) line[i] = static_cast<T>(widen(row[i])) * factor;
    } else {
      widen_row<T>(row, column_stride, width, scales.of(key, factor), line);
      for (; d + kWidth <= width; d += kWidth) non_finite = multiply_add<T>(load_vector(line + d), broadcast(T{0}), non_finite);
    }
    for (; d < width; ++d) non_finite_rest = multiply_add<T>(line[d], T{0}, non_finite_rest);
    for (; d < padded; ++d) line[d] = 0;
  }
  return sum_of_lanes<T>(non_finite) + non_finite_rest == 0;
}

// Returns whether `count` contiguous elements are all finite.
template <class T>
bool all_finite(const T* from, std::int64_t count) {
  constexpr int kWidth = kLanes<T>;
  Vector<T> non_finite[4] = {};
  T non_finite_rest = 0;
  std::int64_t i = 0;
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) non_finite[j] = multiply_add<T>(load_vector(from + i + j * kWidth), broadcast(T{0}), non_finite[j]);
  }
  for (; i < count; ++i) non_finite_rest = multiply_add<T>(from[i], T{0}, non_finite_rest);
  return sum_of_lanes<T>(non_finite[0] + non_finite[1] + non_finite[2] + non_finite[3]) + non_finite_rest == 0;
}

// Copies elements, with NaN and infinities replaced by 0. In a product, 0 * NaN would make rows NaN that do not attend to the element's key. add_non_finite()
// adds the NaN and infinities to the rows that attend to it.
template <class T>
void zero_non_finite(const T* from, std::int64_t count, T* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] * T{0} == 0 ? from[i] : T{0};
}

// Adds own * (factor * (scale * from[d])) to to[d] for the elements of a row that zero_non_finite() replaced.
template <class T, class Storage>
void add_non_finite(const Storage* from, std::int64_t stride, std::int64_t width, T factor, T* to, T own = 1, T scale = 1) {
  for (std::int64_t d = 0; d < width; ++d) {
    const T x = scale * static_cast<T>(widen(from[d * stride]));
    if (!(x * T{0} == 0)) to[d] += own * (factor * x);
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
