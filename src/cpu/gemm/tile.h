#pragma once

#include <memory>
#include <new>

#include "cpu/gemm/kernel.h"
#include "cpu/gemm/pack.h"

namespace polyhead::cpu {

// Panels of 6 rows x 384 and 8 columns x 384 float32 take 9 + 12 KiB of a 32 KiB first-level cache.
inline constexpr std::int64_t kBlockDepth = 384;

// Terms that are summed in registers before they join the total: the rounding error of a sum of d terms then grows with d/32 + 32 and not
// with d, for one load, add and store per 32 multiplications. Part of the result: the order of a sum.
inline constexpr std::int64_t kSumDepth = 32;
static_assert(kBlockDepth % kSumDepth == 0, "else the length of a block would be part of the result, too");

// The operands of one product with their axes resolved.
template <class T>
struct Operands {
  const T *a, *b;
  T* c;
  const T* bias;  // nullptr: none
  bool add;
  Axis a_rows, a_depth, b_depth, b_columns, c_rows, c_columns, bias_columns;
};

// Scratch for tiles of at most `rows` x `columns` and sums of `depth` terms: about 0.5 MiB at most, a second-level cache.
template <class A>
class TileScratch {
 public:
  TileScratch(std::int64_t rows, std::int64_t columns, std::int64_t depth)
      : rows_(round_up(rows, kPanelRows)), columns_(round_up(columns, kPanelColumns<A>)), depth_(std::min(depth, kBlockDepth)) {
    const std::int64_t elements = rows_ * depth_ + columns_ * depth_ + rows_ * columns_;
    memory_.reset(static_cast<A*>(::operator new(static_cast<std::size_t>(elements) * sizeof(A), kAlignment)));
  }
  A* a_panels() { return memory_.get(); }
  A* b_panels() { return a_panels() + rows_ * depth_; }
  A* sums() { return b_panels() + columns_ * depth_; }  // [rows, stride()]
  std::int64_t stride() const { return columns_; }

  static std::int64_t round_up(std::int64_t x, std::int64_t unit) { return (x + unit - 1) / unit * unit; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(A* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::int64_t rows_, columns_, depth_;
  std::unique_ptr<A, Free> memory_;
};

// c over `rows` x `columns`, from the packing of both operands to the store.
template <class T>
void compute_tile(const Operands<T>& operands, Range rows, Range columns, TileScratch<Accumulator<T>>& scratch) {
  using A = Accumulator<T>;
  constexpr int kColumns = kPanelColumns<A>;
  A* sums = scratch.sums();
  const std::int64_t stride = scratch.stride(), depth = operands.a_depth.count();
  std::fill_n(sums, scratch.round_up(rows.size(), kPanelRows) * stride, A{0});
  for (std::int64_t first = 0; first < depth; first += kBlockDepth) {
    const Range k{first, std::min(first + kBlockDepth, depth)};
    pack<kPanelRows>(operands.a, operands.a_rows, rows, operands.a_depth, k, scratch.a_panels());
    pack<kColumns>(operands.b, operands.b_columns, columns, operands.b_depth, k, scratch.b_panels());
    for (std::int64_t j = 0; j < columns.size(); j += kColumns) {
      for (std::int64_t i = 0; i < rows.size(); i += kPanelRows) {
        const A *a = scratch.a_panels() + i * k.size(), *b = scratch.b_panels() + j * k.size();
        for (std::int64_t done = 0; done < k.size(); done += kSumDepth) {
          const std::int64_t terms = std::min(kSumDepth, k.size() - done);
          multiply_panels(terms, a + done * kPanelRows, b + done * kColumns, sums + i * stride + j, stride);
        }
      }
    }
  }
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    T* row = operands.c + operands.c_rows[rows.first + i];
    for (std::int64_t j = 0; j < columns.size(); ++j) {
      T& c = row[operands.c_columns[columns.first + j]];
      A sum = sums[i * stride + j];
      if (operands.bias != nullptr) sum += load(operands.bias[operands.bias_columns[columns.first + j]]);
      if (operands.add) sum += load(c);
      c = store<T>(sum);
    }
  }
}

}  // namespace polyhead::cpu
