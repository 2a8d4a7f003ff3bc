// The epilogue of AMX products: adds the bias and c to the sums of a block of c, rounds the results and stores them. Only kernel sources (*_kernel.cc) include
// this file.
#pragma once

#include "cpu/gemm/tiles_of_a.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// A block of c: at most 32 rows and 32 columns.
struct BlockOfC {
  std::int64_t row = 0, column = 0;
  int rows = 0, columns = 0;
};

// Finishes a block of c one line at a time, so that a few lines can be finished while the tiles multiply the next block. A line is a row of c. It is a column
// of c if the elements of columns are adjacent in memory and those of rows are not (c^T).
class FinishTiles {
 public:
  FinishTiles(const GemmTask& task, const GemmBlock& block) : task_(task), block_(block) {}

  // Returns the memory [32, 32] for the sums of a block. Store the sums there before finishing the block's lines.
  float* sums() { return sums_; }

  void begin(const BlockOfC& part) {
    part_ = part;
    next_ = 0, lines_ = part.rows;
    whole_ = false;
    if (!block_.ends) return;
    transposed_ = (part.columns == 1 || !adjacent(task_.c_columns, part.column, part.columns)) && adjacent(task_.c_rows, part.row, part.rows);
    lines_ = transposed_ ? part.columns : part.rows;
    count_ = transposed_ ? part.rows : part.columns;
    first_ = transposed_ ? part.row : part.column;
    const bool is_adjacent = adjacent(elements(), first_, count_);
    const bool bias_of_lines = task_.bias != nullptr && task_.bias_of_rows != transposed_;  // true: all elements of a line have the same bias
    if (task_.bias != nullptr && !bias_of_lines) widen_bias();
    whole_ = is_adjacent && count_ == kLine && !bias_of_lines;
    c_ = static_cast<bf16*>(task_.c) + (is_adjacent ? offset_of(elements(), first_) : 0);
  }

  int lines() const { return lines_; }

  // Finishes the next `lines` lines.
  POLYHEAD_INLINE void some(int lines) {
    const int end = next_ + lines < lines_ ? next_ + lines : lines_;
    if (whole_ && !transposed_ && block_.starts) {
      for (; next_ < end; ++next_) {
        const float* const line = sums_ + next_ * kLine;
        store_whole(load_vector(line), load_vector(line + kWidth), c_ + offset_of(task_.c_rows, part_.row + next_));
      }
    } else {
      for (; next_ < end; ++next_) finish_line(next_);
    }
  }

 private:
  static constexpr int kLine = kTilePanelColumns, kWidth = kLanes<float>;

  const GemmAxis& elements() const { return transposed_ ? task_.c_rows : task_.c_columns; }  // says where the elements of a line lie in memory

  void widen_bias() {
    const bf16* const bias = static_cast<const bf16*>(task_.bias);
    if (count_ == kLine && adjacent(task_.bias_side, first_, count_)) {
      const bf16* const from = bias + offset_of(task_.bias_side, first_);
      for (int j = 0; j < kLine; j += kWidth) store_vector<float>(Narrow<bf16>::load(from + j), bias_ + j);
    } else {
      for (int j = 0; j < count_; ++j) bias_[j] = widen(bias[offset_of(task_.bias_side, first_ + j)]);
    }
  }

  // Returns the address of the sums of row i over the earlier blocks of terms, beginning at `column`.
  float* earlier(int i, int column) const {
    return static_cast<float*>(block_.sums) + (part_.row + i - block_.rows.first) * block_.sums_stride + (part_.column - block_.panels.first * kLine) + column;
  }

  // Transposes 16 columns of sums_ into 16 lines of transposed_sums_.
  void transpose_tile(int column) {
    for (int row = 0; row < part_.rows; row += kWidth) {
      Vector<float> x[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        x[i] = load_vector(sums_ + (row + i) * kLine + column);
        if (!block_.starts && row + i < part_.rows) x[i] = load_vector(earlier(row + i, column)) + x[i];
      }
      transpose<float>(x);
      for (int i = 0; i < kWidth; ++i) store_vector<float>(x[i], transposed_sums_ + (column + i) * kLine + row);
    }
  }

  __attribute__((noinline)) void finish_line(int i) {
    if (transposed_ && i % kWidth == 0) transpose_tile(i);
    const float* const line = (transposed_ ? transposed_sums_ : sums_) + i * kLine;
    Vector<float> low = load_vector(line), high = load_vector(line + kWidth);
    if (!transposed_ && !block_.starts) low = load_vector(earlier(i, 0)) + low, high = load_vector(earlier(i, kWidth)) + high;
    if (!block_.ends) {
      store_vector<float>(low, earlier(i, 0));
      return store_vector<float>(high, earlier(i, kWidth));
    }
    bf16* const c = c_ + (transposed_ ? offset_of(task_.c_columns, part_.column + i) : offset_of(task_.c_rows, part_.row + i));
    whole_ ? store_whole(low, high, c) : store_elements(i, low, high, c);
  }

  // Adds the bias, and c if the task adds, to a line of 32 adjacent elements, rounds and stores it.
  POLYHEAD_INLINE void store_whole(Vector<float> low, Vector<float> high, bf16* c) const {
    low += load_vector(bias_), high += load_vector(bias_ + kWidth);
    if (task_.add) low += Narrow<bf16>::load(c), high += Narrow<bf16>::load(c + kWidth);
    const Vector<std::int32_t> halves = narrow_halves(low, high);
    __builtin_memcpy(c, &halves, sizeof halves);
  }

  // Does the work of store_whole() for a line that is shorter than 32 elements or not adjacent in memory, or whose bias is one number.
  void store_elements(int i, Vector<float> low, Vector<float> high, bf16* c) const {
    const bool is_adjacent = adjacent(elements(), first_, count_);
    const auto at = [&](int j) __attribute__((always_inline)) { return is_adjacent ? c + j : c + offset_of(elements(), first_ + j); };
    if (task_.bias == nullptr || task_.bias_of_rows == transposed_) {
      low += load_vector(bias_), high += load_vector(bias_ + kWidth);
    } else {
      const float bias = widen(static_cast<const bf16*>(task_.bias)[offset_of(task_.bias_side, (transposed_ ? part_.column : part_.row) + i)]);
      low += bias, high += bias;
    }
    bf16 line[kLine] = {};
    if (task_.add) {
      for (int j = 0; j < count_; ++j) line[j] = *at(j);
      low += Narrow<bf16>::load(line), high += Narrow<bf16>::load(line + kWidth);
    }
    const Vector<std::int32_t> halves = narrow_halves(low, high);
    __builtin_memcpy(line, &halves, sizeof halves);
    for (int j = 0; j < count_; ++j) *at(j) = line[j];
  }

  const GemmTask& task_;
  const GemmBlock& block_;
  BlockOfC part_;
  bool transposed_ = false;  // true: a line is a column of c
  bool whole_ = false;   // whether lines have 32 adjacent elements and the bias has one number for each
  int lines_ = 0, next_ = 0, count_ = 0;
  std::int64_t first_ = 0;  // column of c (or row, if transposed_) of the first element of each line
  bf16* c_ = nullptr;
  alignas(64) float bias_[kLine] = {};
  alignas(64) float sums_[kLine * kLine] = {};  // sums of rows and columns that no tile computes stay 0
  alignas(64) float transposed_sums_[kLine * kLine];
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
