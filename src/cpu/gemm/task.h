// Arguments of the kernels of matrix products. The structs have no functions: an inline function in a header that kernel sources include would be compiled for
// AVX-512 too, and the linker could keep that copy.
#pragma once

#include <cstdint>

#include "polyhead/dtype.h"

namespace polyhead::cpu {

// Where the rows, columns or terms of a matrix lie in memory. Index i is at offset offsets[i], or i * stride if offsets is nullptr, in elements. Within each
// group of `run` indices that begins at a multiple of `run`, neighbours are `stride` apart.
struct GemmAxis {
  std::int64_t count = 0, stride = 0, run = 1;
  const std::int64_t* offsets = nullptr;
};

struct GemmTask {
  DType dtype = DType::f32;
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void* c = nullptr;
  bool add = false;
  bool bias_of_rows = false;  // true: the bias has a number for each row of c instead of each column
  // The number of terms that are summed in registers before they are added to the total. It determines the order of a sum and so its bits. With AMX it is not
  // used: tile registers sum all terms of a block.
  std::int64_t run = 0;
  std::int64_t prefetch_bytes = 0;  // if a block of a has at most this size, the next block is prefetched
  GemmAxis a_rows, a_depth, b_depth, b_columns, c_rows, c_columns, bias_side;
};

// The number of rows of a block is a multiple of kGemmRowStep, which is a multiple of the tile height of every instruction set without AMX.
constexpr std::int64_t kGemmRowStep = 12;

// How the kernels of an instruction set pack and multiply tensors of a dtype.
struct GemmFormat {
  std::int64_t panel_columns = 0;  // number of columns of a panel of b
  std::int64_t element_bytes = 0;  // size of a packed element
  std::int64_t sum_bytes = 0;
  std::int64_t row_step = kGemmRowStep;  // the number of rows of a block is a multiple of row_step and at most most_rows
  std::int64_t most_rows = 132;
  std::int64_t term_step = 1;  // packed terms are padded with zeros to a multiple of term_step
  std::int64_t speed = 1;      // speed relative to float32 with AVX-512, to decide whether waking another thread pays
  bool amx = false;            // true: the products use AMX tiles. Then c^T = b^T a^T gives the same bits, and GemmTask::bias_of_rows is supported.
};

struct Range {
  std::int64_t first = 0, last = 0;
};

// Some panels and terms of b in packed form: [panel, term, column] in the compute type (float32, or float64 for float64 tensors), or with AMX the order of
// gemm/pack_tiles.h. Columns after the last one are 0.
struct PackedColumns {
  void* panels = nullptr;
  Range terms;                   // terms of b that `panels` holds; the first is a multiple of GemmTask::run
  std::int64_t first_panel = 0;  // index in b of the first panel that `panels` holds
};

// A block of c (some rows and panels of columns) and the terms of b that the kernel sums.
struct GemmBlock {
  PackedColumns b;
  Range rows, panels;
  bool starts = true, ends = true;  // starts: b.terms include the first term of the sums; ends: they include the last
  // Running totals [rows, sums_stride] of the sums in the compute type; nullptr if this block has all terms.
  void* sums = nullptr;
  std::int64_t sums_stride = 0;
};

}  // namespace polyhead::cpu
