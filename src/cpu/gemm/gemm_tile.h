// The sums of one tile of c, in registers. For kernel sources only.
//
// A tile of 12 x 2 vectors multiplies for 12 cycles a term and reads two lines of b from the second-level cache meanwhile, so that memory
// has time for more: once every few terms a tile asks for what will be needed, a few lines at a time. Asked for at once, they
// would take the dozen places for lines under way that b needs.
#pragma once

#include "cpu/gemm/operand.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Terms between two askings: a loop of so many is foreseen by the processor.
inline constexpr int kAskTerms = 8;

template <class T>
struct NextRows {
  const T* first;
  std::int64_t stride;
  int count;
};

// What a tile asks for: its own rows of c, and some rows of a of the next block.
template <class T, int kRows>
struct Ahead {
  T* c[kRows];
  NextRows<T> next;
  int asked = 0;  // rows of c

  POLYHEAD_INLINE bool wants() const { return asked < kRows || next.count > 0; }

  template <int Columns>
  POLYHEAD_INLINE void ask() {
#pragma GCC unroll 2
    for (int j = 0; j < Columns; ++j) __builtin_prefetch(c[asked < kRows ? asked : kRows - 1] + j * kLanes<T>, 1);
    ++asked;
    for (int i = 0; i < next.count; ++i) __builtin_prefetch(next.first + i * next.stride, 0, 2);
    next.first += kAskTerms;
  }
};

// Where a tile's terms are: rows of a `a_stride` apart, their terms side by side, or (kTransposed) [term, kGemmRows]; a panel of b.
template <class T>
struct Terms {
  const T* a;
  std::int64_t a_stride;
  const T* b;
};

template <int Rows, int Columns, class T>
void copy_vectors(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride) {
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < Columns * kLanes<T>; j += kLanes<T>)
      store_vector<T>(load_vector(from + i * from_stride + j), to + i * to_stride + j);
  }
}

// sums = the products of `count` terms, one after the other.
template <int Rows, int Columns, bool kTransposed, class T>
POLYHEAD_INLINE void sum_terms(const Terms<T>& terms, std::int64_t count, Ahead<T, Rows>& ahead, Vector<T> (&sums)[Rows][Columns]) {
  constexpr int kWidth = kLanes<T>, kGroup = kTransposed ? Rows : 4, kGroups = (Rows + kGroup - 1) / kGroup, kStep = kAskTerms;
  // One pointer for four rows: offsets of 0 to 3 strides are two registers, where eleven offsets would not leave one for the loop.
  const std::int64_t stride = kTransposed ? 1 : terms.a_stride, step = kTransposed ? kGemmRows : 1;
  const T* a[kGroups];
  const T* first = terms.a;
#pragma GCC unroll 4
  for (const T*& group : a) {
    group = first;
    first += kGroup * stride;
    asm("" : "+r"(group));  // else the compiler counts all rows from the first
  }
  const T* b = terms.b;
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) sums[i][j] = Vector<T>{};
  }
  const auto add_terms = [&](std::int64_t some) __attribute__((always_inline)) {
#pragma GCC unroll 1
    for (; some > 0; --some) {
      Vector<T> line[Columns];
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) {
        prefetch_vector(b + 8 * kPanelColumns<T>, j);
        line[j] = load_vector(b + j * kWidth);
      }
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) {
        const Vector<T> x = broadcast(a[i / kGroup][i % kGroup * stride]);
#pragma GCC unroll 4
        for (int j = 0; j < Columns; ++j) sums[i][j] += x * line[j];
      }
      b += kPanelColumns<T>;
#pragma GCC unroll 4
      for (const T*& group : a) group += step;
    }
  };
  for (; count >= kStep && ahead.wants(); count -= kStep) {
    ahead.template ask<Columns>();
    add_terms(kStep);
  }
  add_terms(count);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
