// The matrix product kernels of one instruction set. An instruction set that extends another one (amx_bf16, for example) multiplies bfloat16 by AMX tiles if it
// has them, and uses the kernels of the other set for all other products.
#include "cpu/gemm/kernels.h"

#ifdef POLYHEAD_BASE_ISA

#include "cpu/gemm/multiply_tiles.h"

namespace polyhead::cpu::POLYHEAD_BASE_ISA {
extern const GemmKernels gemm_kernels;
}  // namespace polyhead::cpu::POLYHEAD_BASE_ISA

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

bool by_tiles(DType dtype) { return kHasAmx && dtype == DType::bf16; }

GemmFormat format(DType dtype) {
  if (!by_tiles(dtype)) return POLYHEAD_BASE_ISA::gemm_kernels.format(dtype);
  return {.panel_columns = kTilePanelColumns,
          .element_bytes = 2,
          .sum_bytes = 4,
          .row_step = kRowsOfBlock,
          .most_rows = kMostTilesOfA * kRowsOfTile,
          .term_step = kTileTerms,
          .speed = 8,
          .amx = true};
}

void pack(const GemmTask& task, const PackedColumns& b, Range panels, Range terms) {
  by_tiles(task.dtype) ? pack_tiles(task, b, panels, terms) : POLYHEAD_BASE_ISA::gemm_kernels.pack(task, b, panels, terms);
}

std::int64_t scratch(const GemmTask& task, std::int64_t rows, std::int64_t terms) {
  return by_tiles(task.dtype) ? tiles_of_a_bytes(task, rows, terms) : POLYHEAD_BASE_ISA::gemm_kernels.scratch(task, rows, terms);
}

void multiply(const GemmTask& task, const GemmBlock& block, void* memory) {
  by_tiles(task.dtype) ? MultiplyTiles(task, block, static_cast<char*>(memory)).run() : POLYHEAD_BASE_ISA::gemm_kernels.multiply(task, block, memory);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA

#else

#include "cpu/gemm/multiply_vectors.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

GemmFormat format(DType dtype) {
  if (dtype == DType::f64) return {.panel_columns = kPanelColumns<double>, .element_bytes = 8, .sum_bytes = 8};
  return {.panel_columns = kPanelColumns<float>, .element_bytes = 4, .sum_bytes = 4};
}

void pack(const GemmTask& task, const PackedColumns& b, Range panels, Range terms) {
  task.dtype == DType::f64 ? pack_columns<double>(task, b, panels, terms) : pack_columns<float>(task, b, panels, terms);
}

std::int64_t scratch(const GemmTask& task, std::int64_t rows, std::int64_t terms) {
  return task.dtype == DType::f64 ? rows_of_a_size<double>(task, rows, terms) * 8 : rows_of_a_size<float>(task, rows, terms) * 4;
}

void multiply(const GemmTask& task, const GemmBlock& block, void* memory) {
  task.dtype == DType::f64 ? multiply_block<double>(task, block, memory) : multiply_block<float>(task, block, memory);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA

#endif

namespace polyhead::cpu::POLYHEAD_ISA {

extern const GemmKernels gemm_kernels;
constinit const GemmKernels gemm_kernels = {format, pack, scratch, multiply};

}  // namespace polyhead::cpu::POLYHEAD_ISA
