// Provides the rows of a to the kernels: in place if possible, else as a copy. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/gemm/operand.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// The layout in which the kernels read a. in_place: the matrix itself. lines: a copy in which row r begins at data + r * stride and the terms of a row are
// adjacent. panels: a copy [tile, term, kGemmRows], for a matrix whose columns have adjacent elements (d_y^T for the gradient of a weight). If such a matrix
// were read in place, every few terms would lie on another page of memory.
enum class Layout { in_place, lines, panels };

template <class T>
struct RowsOfA {
  const T* data;
  std::int64_t stride;  // distance between tiles (Layout::panels) or between rows
  Layout layout;
};

// Returns the distance between rows of a copy: one cache line longer than the terms, so that rows begin at different offsets in a page.
template <class T>
POLYHEAD_INLINE std::int64_t line_stride(std::int64_t terms) { return terms + 64 / static_cast<std::int64_t>(sizeof(T)); }

template <class T>
Layout layout_of(const GemmTask& task) {
  const bool own = task.dtype == kOwnStorage<T>;
  // If the distance between rows is a multiple of a page, all rows compete for one set (8 lines) of the first-level cache. Such rows are copied unless they are
  // read only a few times.
  const bool collide = task.a_rows.stride != 0 && task.a_rows.stride * static_cast<std::int64_t>(sizeof(T)) % 4096 == 0 &&
                       task.a_rows.count > 8 && task.b_columns.count >= 4 * kPanelColumns<T>;
  if (own && !collide && task.a_rows.offsets == nullptr && adjacent(task.a_depth, 0, task.a_depth.count)) return Layout::in_place;
  return task.a_rows.stride == 1 && task.a_depth.stride != 1 ? Layout::panels : Layout::lines;
}

template <class T>
POLYHEAD_INLINE std::int64_t rows_of_a_size(const GemmTask& task, std::int64_t rows, std::int64_t terms) {
  if (layout_of<T>(task) == Layout::in_place) return 0;
  return (rows + kGemmRows - 1) / kGemmRows * kGemmRows * line_stride<T>(terms);
}

template <class T, class Storage>
void copy_line(const Storage* from, const GemmAxis& depth, Range terms, T* to) {
  for (std::int64_t k = terms.first; k < terms.last;) {
    const std::int64_t left = terms.last - k, run = depth.offsets == nullptr ? left : smaller(left, depth.run - k % depth.run);
    widen_row<T>(from + offset_of(depth, k), depth.stride, run, T{1}, to);
    k += run;
    to += run;
  }
}

// Copies some terms of one tile. Rows from `count` on do not exist and are not written: the kernel computes their sums but does not store them.
template <class T, class Storage>
void copy_panel(const GemmTask& task, const Storage* from, std::int64_t row, int count, Range terms, T* to) {
  std::int64_t offsets[kGemmRows];
  for (int i = 0; i < count; ++i) offsets[i] = offset_of(task.a_rows, row + i);
  const bool whole = count == kGemmRows && adjacent(task.a_rows, row, count);
  for (std::int64_t k = terms.first; k < terms.last; ++k, to += kGemmRows) {
    const Storage* line = from + offset_of(task.a_depth, k);
    __builtin_prefetch(line + 16 * task.a_depth.stride + offsets[0]);  // this prefetch is useful if all terms have one stride
    if (whole && std::is_same_v<T, Storage>) {
      __builtin_memcpy(to, line + offsets[0], kGemmRows * sizeof(T));
    } else {
      for (int i = 0; i < count; ++i) to[i] = widen(line[offsets[i]]);
    }
  }
}

// Copies rows of a into panels, a few terms of all tiles at a time, so that memory is read in order.
template <class T, class Storage>
void copy_panels(const GemmTask& task, const Storage* from, Range rows, Range terms, std::int64_t stride, T* to) {
  constexpr std::int64_t kTerms = 4;
  for (std::int64_t k = terms.first; k < terms.last; k += kTerms, to += kTerms * kGemmRows) {
    for (std::int64_t row = rows.first, tile = 0; row < rows.last; row += kGemmRows, ++tile) {
      const int count = static_cast<int>(smaller(kGemmRows, rows.last - row));
      copy_panel(task, from, row, count, {k, smaller(k + kTerms, terms.last)}, to + tile * stride);
    }
  }
}

template <class T>
RowsOfA<T> rows_of_a(const GemmTask& task, Range rows, Range terms, T* scratch) {
  const Layout layout = layout_of<T>(task);
  if (layout == Layout::in_place) {
    const std::int64_t offset = offset_of(task.a_rows, rows.first) + offset_of(task.a_depth, terms.first);
    return {static_cast<const T*>(task.a) + offset, task.a_rows.stride, layout};
  }
  const std::int64_t depth = terms.last - terms.first, stride = layout == Layout::lines ? line_stride<T>(depth) : kGemmRows * depth;
  with_storage<T>(task.dtype, task.a, [&](auto* data) {
    if (layout == Layout::lines) {
      for (std::int64_t row = rows.first; row < rows.last; ++row) {
        copy_line(data + offset_of(task.a_rows, row), task.a_depth, terms, scratch + (row - rows.first) * stride);
      }
    } else {
      copy_panels(task, data, rows, terms, stride, scratch);
    }
  });
  return {scratch, stride, layout};
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
