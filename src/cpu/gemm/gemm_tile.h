// Computes the sums of one tile of c in vector registers. Only kernel sources (*_kernel.cc) include this file.
//
// A tile of 12 x 2 vectors takes 12 cycles per term and reads two cache lines of b from the second-level cache in that time. That leaves
// time for prefetches: every few terms a tile prefetches a few cache lines that are needed next. If all prefetches were issued at once, they would occupy the
// processor's dozen line fill buffers, which the loads of b need.
#pragma once

#include "cpu/gemm/operand.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Number of terms between two prefetches. The branch predictor predicts the end of a loop this short.
inline constexpr int kPrefetchTerms = 8;

template <class T>
struct NextRows {
  const T* first;
  std::int64_t stride;
  int count;
};

// The rows that a tile prefetches while it is computed: the tile's rows of c, and some rows of a that belong to the next block.
template <class T, int kRows>
struct Prefetch {
  T* c[kRows];
  NextRows<T> next;
  int rows = 0;  // rows of c prefetched so far

  POLYHEAD_INLINE bool wanted() const { return rows < kRows || next.count > 0; }

  template <int Columns>
  POLYHEAD_INLINE void some() {
#pragma GCC unroll 2
    for (int j = 0; j < Columns; ++j) __builtin_prefetch(c[rows < kRows ? rows : kRows - 1] + j * kLanes<T>, 1);
    ++rows;
    for (int i = 0; i < next.count; ++i) __builtin_prefetch(next.first + i * next.stride, 0, 2);
    next.first += kPrefetchTerms;
  }
};

// The operands of a tile. a: rows that are `a_stride` apart or, if kTransposed, a packed panel [term, kGemmRows]. b: a packed panel.
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

// Sets `sums` to the sum of `count` products, added in order.
template <int Rows, int Columns, bool kTransposed, class T>
POLYHEAD_INLINE void sum_terms(const Terms<T>& terms, std::int64_t count, Prefetch<T, Rows>& prefetch, Vector<T> (&sums)[Rows][Columns]) {
  constexpr int kWidth = kLanes<T>, kGroup = kTransposed ? Rows : 4, kGroups = (Rows + kGroup - 1) / kGroup, kStep = kPrefetchTerms;
  // There is one pointer for each group of four rows. Addressing four rows needs two registers, one for the stride and one for three times the stride. A single
  // pointer for twelve rows would need more registers than are left.
  const std::int64_t stride = kTransposed ? 1 : terms.a_stride, step = kTransposed ? kGemmRows : 1;
  const T* a[kGroups];
  const T* first = terms.a;
#pragma GCC unroll 4
  for (const T*& group : a) {
    group = first;
    first += kGroup * stride;
    asm("" : "+r"(group));  // hides that all pointers come from the first one; otherwise the compiler would compute the addresses of all rows from it
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
        for (int j = 0; j < Columns; ++j) sums[i][j] = multiply_add<T>(x, line[j], sums[i][j]);
      }
      b += kPanelColumns<T>;
#pragma GCC unroll 4
      for (const T*& group : a) group += step;
    }
  };
  for (; count >= kStep && prefetch.wanted(); count -= kStep) {
    prefetch.template some<Columns>();
    add_terms(kStep);
  }
  add_terms(count);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
