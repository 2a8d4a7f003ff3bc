// Arguments of the matrix product's kernels. Plain data: inline functions in a header that kernels include would be compiled for AVX-512
// too.
#pragma once

#include <cstdint>

#include "polyhead/dtype.h"

namespace polyhead::cpu {

// The rows, columns or terms of a matrix. Index i is at offsets[i], or at i * stride if offsets is nullptr, in elements. Indices of one run
// (from one multiple of `run` to the next) are `stride` apart.
struct GemmAxis {
  std::int64_t count = 0, stride = 0, run = 1;
  const std::int64_t* offsets = nullptr;
};

struct GemmTask {
  DType dtype = DType::f32;
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void* c = nullptr;
  bool add = false;
  bool bias_of_rows = false;  // bias belongs to the rows of c instead of its columns
  // Terms that are summed in registers before they are added to the total. This is the order of a sum, so it decides the bits. Products of AMX tiles
  // do not use it: their registers sum all terms of a block.
  std::int64_t run = 0;
  std::int64_t prefetch_bytes = 0;  // if a block of a has at most this size, the next block is prefetched
  GemmAxis a_rows, a_depth, b_depth, b_columns, c_rows, c_columns, bias_side;
};

// The number of rows of a block is a multiple of this; the rows of a tile of any instruction set without AMX divide it.
constexpr std::int64_t kGemmRowStep = 12;

// How the kernels of an instruction set read a dtype.
struct GemmFormat {
  std::int64_t panel_columns = 0;  // columns of a panel of b
  std::int64_t element_bytes = 0;  // size of a packed element
  std::int64_t sum_bytes = 0;
  std::int64_t row_step = kGemmRowStep;  // the number of rows of a block is a multiple of this, and at most most_rows
  std::int64_t most_rows = 132;
  std::int64_t term_step = 1;  // packed terms are padded with zeros to a multiple of this
  std::int64_t speed = 1;      // speed compared to float32 with AVX-512; decides when another thread is worth waking
  bool amx = false;            // AMX tiles multiply. Then c^T = b^T a^T has the same bits, and GemmTask::bias_of_rows is supported.
};

struct Range {
  std::int64_t first = 0, last = 0;
};

// Some panels and terms of b, packed as [panel, term, column] in the compute type (float32, or float64 for float64 storage), or as gemm/pack_tiles.h
// says; columns beyond the last are 0.
struct PackedColumns {
  void* panels = nullptr;
  Range terms;                   // first is a multiple of GemmTask::run
  std::int64_t first_panel = 0;  // first panel of `panels`, counted in all of b
};

// Block of c, rows x panels, summed over the terms of b.
struct GemmBlock {
  PackedColumns b;
  Range rows, panels;
  bool starts = true, ends = true;  // whether b.terms include the first term of the sums, and the last
  // Running totals [rows, sums_stride] in the compute type; nullptr if this block has all terms of the sums.
  void* sums = nullptr;
  std::int64_t sums_stride = 0;
};

}  // namespace polyhead::cpu
