// Writes or adds a row of d_score to d_bias. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/rows.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

POLYHEAD_INLINE std::int64_t bias_offset(const BackwardTask& task, const Row& row, std::int64_t first) {
  return row.head * task.d_bias.head + row.query * task.d_bias.row + first * task.d_bias.column;
}

template <class T>
POLYHEAD_INLINE void stream_row(const T* from, std::int64_t count, T* to) {
  constexpr int kWidth = kLanes<T>;
  std::int64_t i = 0;
  for (; i < count && reinterpret_cast<std::uintptr_t>(to + i) % sizeof(Vector<T>) != 0; ++i) to[i] = from[i];
  for (; i + kWidth <= count; i += kWidth) stream_vector<T>(load_vector(from + i), to + i);
  for (; i < count; ++i) to[i] = from[i];
}

// Writes d_score to d_bias for the keys [first, first + count) of the row. d_score is 0 for masked keys.
template <class T>
POLYHEAD_INLINE void write_bias_row(const BackwardTask& task, const Row& row, std::int64_t first, std::int64_t count, const T* d_score) {
  const std::int64_t offset = bias_offset(task, row, first);
  if (task.stream_d_bias && task.d_bias.column == 1 && task.dtype == kOwnStorage<T>) {
    return stream_row(d_score, count, static_cast<T*>(task.d_bias.data) + offset);
  }
  narrow_row<T>(task.dtype, d_score, count, T{1}, task.d_bias.data, offset, task.d_bias.column);
}

// Writes d_bias = 0 for the keys [first, first + count) of rows that attend to none of these keys.
template <class T>
void clear_bias_rows(const BackwardTask& task, const Row* rows, int row_count, std::int64_t first, std::int64_t count, T* scratch) {
  clear(scratch, 0, count);
  for (int i = 0; i < row_count; ++i) write_bias_row(task, rows[i], first, count, scratch);
}

// Prefetches the memory that a later add_bias_row() will change. The hardware does not prefetch it, because the rows of d_bias are far apart in memory.
template <class T>
POLYHEAD_INLINE void fetch_bias_row(const BackwardTask& task, const Row& row, std::int64_t first, KeyRange keys) {
  if (task.d_bias.column != 1) return;
  const T* const to = static_cast<const T*>(task.d_bias.data) + bias_offset(task, row, first);
  for (std::int64_t i = keys.first; i < keys.last; i += 64 / static_cast<std::int64_t>(sizeof(T))) __builtin_prefetch(to + i, 1, 2);
}

template <class T>
POLYHEAD_INLINE void add_bias_row(const BackwardTask& task, const Row& row, std::int64_t first, KeyRange keys, const T* d_score) {
  add_to_row(d_score, keys.first, keys.last, task.d_bias.column, static_cast<T*>(task.d_bias.data) + bias_offset(task, row, first));
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
