// Packs columns of b into panels [terms, kPanelColumns], the order in which the kernels read b. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/gemm/operand.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Packs columns of b whose terms are adjacent in memory (as in the weight [out,in] of a projection), a vector of columns at a time.
template <class T, class Storage>
void pack_transposed_lines(const Storage* const* columns, int count, std::int64_t terms, T* to) {
  constexpr int kWidth = kLanes<T>, kPiece = 64;
  T pieces[kWidth * kPiece];
  for (std::int64_t first = 0; first < terms; first += kPiece) {
    const int piece = static_cast<int>(smaller(kPiece, terms - first));
    const T* rows[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      rows[i] = pieces + i * kPiece;
      if (i >= count) {
        for (int k = 0; k < piece; ++k) pieces[i * kPiece + k] = 0;
      } else if constexpr (std::is_same_v<T, Storage>) {
        rows[i] = columns[i] + first;
      } else {
        for (int k = 0; k < piece; ++k) pieces[i * kPiece + k] = widen(columns[i][first + k]);
      }
    }
    T* line = to + first * kPanelColumns<T>;
    int k = 0;
    for (; k + kWidth <= piece; k += kWidth) transpose<T>(rows, k, line + k * kPanelColumns<T>, kPanelColumns<T>);
    for (; k < piece; ++k) {
      for (int i = 0; i < kWidth; ++i) line[k * kPanelColumns<T> + i] = rows[i][k];
    }
  }
}

template <class T, class Storage>
void pack_transposed_panel(const GemmTask& task, const Storage* b, std::int64_t column, Range terms, T* to) {
  constexpr int kWidth = kLanes<T>, kColumns = kPanelColumns<T>;
  const int count = static_cast<int>(smaller(kColumns, task.b_columns.count - column));
  b += offset_of(task.b_depth, terms.first);
  for (int j = 0; j < kColumns; j += kWidth) {
    const Storage* columns[kWidth] = {};
    for (int i = 0; i < kWidth && j + i < count; ++i) columns[i] = b + offset_of(task.b_columns, column + j + i);
    pack_transposed_lines<T>(columns, count - j, terms.last - terms.first, to + j);
  }
}

template <class T, class Storage>
void pack_panel(const GemmTask& task, const Storage* b, std::int64_t column, Range terms, T* to) {
  constexpr int kWidth = kLanes<T>, kColumns = kPanelColumns<T>;
  const int count = static_cast<int>(smaller(kColumns, task.b_columns.count - column));
  const int whole = adjacent(task.b_columns, column, count) ? count / kWidth * kWidth : 0;
  const std::int64_t first = offset_of(task.b_columns, column);
  for (std::int64_t k = terms.first; k < terms.last; ++k, to += kColumns) {
    const Storage* line = b + offset_of(task.b_depth, k);
    for (int j = 0; j < whole; j += kWidth) {
      __builtin_prefetch(line + 16 * task.b_depth.stride + first + j);  // this prefetch is useful if the rows of b are evenly spaced
      if constexpr (std::is_same_v<T, Storage>) {
        store_vector<T>(load_vector(line + first + j), to + j);
      } else {
        for (int i = 0; i < kWidth; ++i) to[j + i] = widen(line[first + j + i]);
      }
    }
    for (int j = whole; j < count; ++j) to[j] = widen(line[offset_of(task.b_columns, column + j)]);
    for (int j = count; j < kColumns; ++j) to[j] = 0;
  }
}

// Returns the address of the row of a panel that belongs to term `term`.
template <class T>
POLYHEAD_INLINE T* packed_at(const PackedColumns& b, std::int64_t panel, std::int64_t term) {
  const std::int64_t line = (panel - b.first_panel) * (b.terms.last - b.terms.first) + term - b.terms.first;
  return static_cast<T*>(b.panels) + line * kPanelColumns<T>;
}

template <class T>
void pack_columns(const GemmTask& task, const PackedColumns& b, Range panels, Range terms) {
  const bool transposed = task.b_columns.stride != 1 && adjacent(task.b_depth, terms.first, terms.last - terms.first);
  // A few rows of b at a time are packed into all panels, so that memory is read in order.
  const std::int64_t step = transposed ? terms.last - terms.first : 4;
  with_storage<T>(task.dtype, task.b, [&](auto* data) {
    for (Range some{terms.first, terms.first}; some.first < terms.last; some.first = some.last) {
      some.last = smaller(some.first + step, terms.last);
      for (std::int64_t panel = panels.first; panel < panels.last; ++panel) {
        const std::int64_t column = panel * kPanelColumns<T>;
        T* to = packed_at<T>(b, panel, some.first);
        transposed ? pack_transposed_panel<T>(task, data, column, some, to) : pack_panel<T>(task, data, column, some, to);
      }
    }
  });
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
