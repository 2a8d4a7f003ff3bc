// Arguments of the matrix product's kernels. Plain data: inline functions in a header that kernels include would be compiled for AVX-512 too.
#pragma once

#include <cstdint>

#include "polyhead/dtype.h"

namespace polyhead::cpu {

// One side of a matrix, offsets in elements: index i is at offsets[i], or at i * stride without a table. Indices from one multiple of `run` to
// the next are `stride` apart.
struct Side {
  std::int64_t count = 0, stride = 0, run = 1;
  const std::int64_t* offsets = nullptr;
};

struct GemmTask {
  DType dtype = DType::f32;
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void* c = nullptr;
  bool add = false;
  // Terms that are summed in registers before they are added to the total. This is the order of a sum, so it decides the bits.
  std::int64_t run = 0;
  std::int64_t prefetch_bytes = 0;  // a block of a up to this size has the next block prefetched
  Side a_rows, a_depth, b_depth, b_columns, c_rows, c_columns, bias_columns;
};

struct Range {
  std::int64_t first = 0, last = 0;
};

// b over some panels of columns and some terms of the sums, in the type of arithmetic: [panel, term, column], zero beyond the last column.
struct PackedColumns {
  void* panels = nullptr;
  Range terms;               // first is a multiple of GemmTask::run
  std::int64_t first_panel = 0;  // columns of b before the first panel / columns of a panel
};

// Rows x panels of c over the terms of the packed columns.
struct GemmBlock {
  PackedColumns b;
  Range rows, panels;
  bool starts = true, ends = true;  // whether the terms are the first, the last of the sums
  void* sums = nullptr;             // [rows, sums_stride] in the type of arithmetic, from the block's first; nullptr where it starts and ends
  std::int64_t sums_stride = 0;
};

}  // namespace polyhead::cpu
