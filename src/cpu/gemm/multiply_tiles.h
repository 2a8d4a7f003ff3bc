// Products of bfloat16 by AMX tiles. Only kernel sources (*_kernel.cc) include this file.
//
// A block of c is 2 x 2 tiles of 16 x 16 sums. For each block of terms, the kernel loads two tiles of a and two of b and computes four products. A product takes 16
// cycles, a load 9 cycles from the first-level cache and 19 from the second. The panel of b should therefore stay in the first-level cache, so rows of a are
// loaded without being stored there.
//
// Order of a sum: one instruction sums the first terms of 16 pairs from zero and the second terms of these pairs from zero, and adds both sums to the sum of the
// earlier blocks of terms.
#pragma once

#include "cpu/gemm/finish_tiles.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

class MultiplyTiles {
 public:
  MultiplyTiles(const GemmTask& task, const GemmBlock& block, char* scratch)
      : task_(task), block_(block), a_(task, block.rows, block.b.terms, scratch), finish_(task, block) {}

  void run() {
    for (std::int64_t panel = block_.panels.first; panel < block_.panels.last; ++panel) {
      task_.b_columns.count - panel * kTilePanelColumns > kTileColumns ? multiply_panel<2>(panel) : multiply_panel<1>(panel);
    }
    finish_waiting();
  }

 private:
  template <int Columns>
  void multiply_panel(std::int64_t panel) {
    const std::int64_t rows = block_.rows.last - block_.rows.first, column = panel * kTilePanelColumns;
    const char* const b = packed_tiles_at(block_.b, panel, block_.b.terms.first);
    BlockOfC part{.column = column, .columns = static_cast<int>(smaller(kTilePanelColumns, task_.b_columns.count - column))};
    for (std::int64_t row = 0; row < rows; row += kRowsOfBlock) {
      part.row = block_.rows.first + row, part.rows = static_cast<int>(smaller(kRowsOfBlock, rows - row));
      const TileRows* const a = a_[row / kRowsOfTile];
      part.rows > kRowsOfTile ? multiply_block<2, Columns>(part, a, b) : multiply_block<1, Columns>(part, a, b);
    }
  }

  // On entry the registers still hold the sums of the previous block. Each register is stored just before it is set to 0: a store directly after the register's
  // last product would wait for this product, and later products would wait for the store.
  template <int Rows, int Columns>
  __attribute__((noinline)) void multiply_block(const BlockOfC& part, const TileRows* a, const char* b) {
    const std::int64_t blocks = a_.blocks();
    if (waiting_tiles_ != tiles_of<Rows, Columns> || blocks == 0) finish_waiting();
    waiting_tiles_ = tiles_of<Rows, Columns>;
    if (blocks == 0) {
      set_to_zero();
    } else {
      finish_.begin(waiting_);
      multiply_all_terms<Rows, Columns>(blocks, a, b);
    }
    waiting_ = part;
  }

  template <int Rows, int Columns>
  POLYHEAD_INLINE void multiply_all_terms(std::int64_t blocks, const TileRows* a, const char* b) {
    const int lines = static_cast<int>((finish_.lines() + blocks - 1) / blocks);  // number of lines of the previous block to finish during each block of terms
    const char* a_at[Rows];
    std::int64_t a_stride[Rows];
    for (int i = 0; i < Rows; ++i) a_at[i] = a[i].first, a_stride[i] = a[i].stride;
    const auto take_tails = [&]() __attribute__((always_inline)) {
      for (int i = 0; i < Rows; ++i) {
        if (a[i].tail != nullptr) a_at[i] = a[i].tail, a_stride[i] = kTilePairs * 4;
      }
    };
    if (blocks == 1) take_tails();
    multiply_terms<Rows, Columns, true>(a_at, a_stride, b);
    finish_.some(lines);
    for (std::int64_t k = 1; k < blocks; ++k) {
      b += kPanelBlockBytes;
      for (int i = 0; i < Rows; ++i) a_at[i] += a[i].step;
      if (k + 1 == blocks) take_tails();
      multiply_terms<Rows, Columns, false>(a_at, a_stride, b);
      finish_.some(lines);
    }
  }

  // Multiplies one block of terms.
  template <int Rows, int Columns, bool kFirst>
  POLYHEAD_INLINE void multiply_terms(const char* const (&a)[Rows], const std::int64_t (&a_stride)[Rows], const char* b) {
    constexpr std::int64_t kStride = kTileColumns * 4;
    tiles_.template load_once<4>(a[0], a_stride[0]);
    tiles_.template load<6>(b, kStride);
    if constexpr (kFirst) replace_sums<0, 0>();
    tiles_.template multiply<0, 4, 6>();
    if constexpr (Rows > 1) {
      tiles_.template load_once<5>(a[1], a_stride[1]);
      if constexpr (kFirst) replace_sums<1, 0>();
      tiles_.template multiply<2, 5, 6>();
    }
    if constexpr (Columns > 1) {
      tiles_.template load<7>(b + kTileBytes, kStride);
      if constexpr (kFirst) replace_sums<0, 1>();
      tiles_.template multiply<1, 4, 7>();
      if constexpr (Rows > 1) {
        if constexpr (kFirst) replace_sums<1, 1>();
        tiles_.template multiply<3, 5, 7>();
      }
    }
  }

  template <int kRow, int kColumn>
  POLYHEAD_INLINE void store_sums() {
    tiles_.template store<2 * kRow + kColumn>(finish_.sums() + kRow * kRowsOfTile * kTilePanelColumns + kColumn * kTileColumns, kTilePanelColumns * 4);
  }
  template <int kRow, int kColumn>
  POLYHEAD_INLINE void replace_sums() {
    store_sums<kRow, kColumn>();
    tiles_.template zero<2 * kRow + kColumn>();
  }

  void set_to_zero() {
    tiles_.template zero<0>();
    tiles_.template zero<1>();
    tiles_.template zero<2>();
    tiles_.template zero<3>();
  }

  // Finishes the block whose sums are still in registers. All registers are stored, also those that the block does not use. They hold old sums, but no line
  // reads these.
  void finish_waiting() {
    if (waiting_.rows == 0) return;
    store_sums<0, 0>();
    store_sums<0, 1>();
    store_sums<1, 0>();
    store_sums<1, 1>();
    finish_.begin(waiting_);
    finish_.some(finish_.lines());
    waiting_ = {};
  }

  template <int Rows, int Columns>
  static constexpr int tiles_of = 2 * Rows + Columns;

  const GemmTask& task_;
  const GemmBlock& block_;
  AmxTiles tiles_;
  const TilesOfA a_;
  FinishTiles finish_;
  BlockOfC waiting_;  // the block whose sums are still in registers; if rows == 0, there is no such block
  int waiting_tiles_ = 0;
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
