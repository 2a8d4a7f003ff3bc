// The kernel functions of matrix products, compiled for every instruction set.
#pragma once

#include "cpu/gemm/task.h"

namespace polyhead::cpu {

struct GemmKernels {
  static const GemmKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  GemmFormat (*format)(DType dtype);
  // Packs the terms [terms.first, terms.last) of the panels [panels.first, panels.last) into b.
  void (*pack)(const GemmTask& task, const PackedColumns& b, Range panels, Range terms);
  // Returns the bytes of scratch, aligned to a cache line, that `multiply` needs for this number of rows and terms. `multiply` allocates no other memory.
  std::int64_t (*scratch)(const GemmTask& task, std::int64_t rows, std::int64_t terms);
  void (*multiply)(const GemmTask& task, const GemmBlock& block, void* scratch);
};

}  // namespace polyhead::cpu
