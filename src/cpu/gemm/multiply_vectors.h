// Computes c[m,n] = (add ? c[m,n] : 0) + sum_k a[m,k] b[k,n] + bias[n] for a block of rows and columns with vector instructions.
//
// The outer loop runs over panels of columns, the inner loop over tiles of rows. The block's rows of a and the panel stay in the second-level cache, which is
// fast enough for the loads of a tile. Each run of terms is summed from zero in registers and then added to the total. Only kernel sources (*_kernel.cc)
// include this file.
#pragma once

#include "cpu/gemm/gemm_tile.h"
#include "cpu/gemm/pack_b.h"
#include "cpu/gemm/rows_of_a.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// The epilogue of a panel: adds the bias and c to the sums, converts them to the dtype of c and stores them.
template <class T>
class Finish {
 public:
  Finish(const GemmTask& task, std::int64_t column) : task_(task), count_(static_cast<int>(smaller(kPanelColumns<T>, task.c_columns.count - column))) {
    for (T& bias : bias_) bias = 0;
    if (task.bias != nullptr) {
      with_storage<T>(task.dtype, task.bias, [&](auto* data) {
        for (int j = 0; j < count_; ++j) bias_[j] = widen(data[offset_of(task.bias_side, column + j)]);
      });
    }
    direct_ = task.dtype == kOwnStorage<T> && count_ % kLanes<T> == 0 && adjacent(task.c_columns, column, count_);
    for (int j = 0; j < count_; ++j) columns_[j] = offset_of(task.c_columns, column + j);
  }

  int vectors() const { return (count_ + kLanes<T> - 1) / kLanes<T>; }
  bool direct() const { return direct_; }  // true: rows of c are stored in whole vectors

  T* row(std::int64_t index) const { return static_cast<T*>(task_.c) + offset_of(task_.c_rows, index) + columns_[0]; }

  template <int Rows, int Columns>
  POLYHEAD_INLINE void store(T* const (&c)[Rows], Vector<T> (&sums)[Rows][Columns]) const {
    if (task_.add) {
      for_each_vector<Rows, Columns, T>(
          sums, [&](int i, int j, Vector<T> sum) { store_vector<T>((sum + load_vector(bias_ + j)) + load_vector(c[i] + j), c[i] + j); });
    } else {
      for_each_vector<Rows, Columns, T>(sums, [&](int i, int j, Vector<T> sum) { store_vector<T>(sum + load_vector(bias_ + j), c[i] + j); });
    }
  }

  void store(std::int64_t first, std::int64_t rows, const T* sums, std::int64_t stride) const {
    with_storage<T>(task_.dtype, task_.c, [&](auto* data) {
      using Storage = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
      for (std::int64_t i = 0; i < rows; ++i) {
        Storage* c = const_cast<Storage*>(data) + offset_of(task_.c_rows, first + i);
        for (int j = 0; j < count_; ++j) {
          T sum = sums[i * stride + j] + bias_[j];
          if (task_.add) sum += widen(c[columns_[j]]);
          narrow(sum, c + columns_[j]);
        }
      }
    });
  }

 private:
  const GemmTask& task_;
  int count_;
  bool direct_;
  T bias_[kPanelColumns<T>];
  std::int64_t columns_[kPanelColumns<T>];
};

// A tile of c, and the operands from which it is computed.
template <class T>
struct Tile {
  Terms<T> terms;
  std::int64_t depth, run;
  std::int64_t first;  // first row of c
  T* sums;             // totals of earlier blocks of terms: read unless block.starts, written unless block.ends
  std::int64_t sums_stride;
  NextRows<T> next;  // rows of a to prefetch
};

template <int Rows, int Columns, bool kTransposed, class T>
__attribute__((noinline)) void multiply_terms(Tile<T> tile, const GemmBlock& block, const Finish<T>& finish) {
  constexpr int kLine = Columns * kLanes<T>;
  alignas(64) T total[Rows * kLine];
  const bool direct = block.ends && finish.direct();
  Prefetch<T, Rows> prefetch{.c = {}, .next = tile.next};
  for (int i = 0; i < Rows; ++i) prefetch.c[i] = direct ? finish.row(tile.first + i) : total + i * kLine;
  if (!block.starts) copy_vectors<Rows, Columns>(tile.sums, tile.sums_stride, total, kLine);
  for (std::int64_t done = 0;;) {
    Vector<T> sums[Rows][Columns];
    const std::int64_t count = smaller(tile.run, tile.depth - done);
    sum_terms<Rows, Columns, kTransposed>(tile.terms, count, prefetch, sums);
    if (!block.starts || done > 0) {
      for_each_vector<Rows, Columns, T>(sums, [&](int i, int j, Vector<T>& sum) { sum = load_vector(total + i * kLine + j) + sum; });
    }
    done += count;
    if (done == tile.depth && direct) return finish.store(prefetch.c, sums);
    for_each_vector<Rows, Columns, T>(sums, [&](int i, int j, Vector<T> sum) { store_vector<T>(sum, total + i * kLine + j); });
    if (done == tile.depth) break;
    tile.terms.a += tile.run * (kTransposed ? kGemmRows : 1);
    tile.terms.b += tile.run * kPanelColumns<T>;
  }
  if (block.ends) return finish.store(tile.first, Rows, total, kLine);
  copy_vectors<Rows, Columns>(total, kLine, tile.sums, tile.sums_stride);
}

template <bool kTransposed, class T>
void multiply_block(const GemmTask& task, const GemmBlock& block, const RowsOfA<T>& a) {
  const std::int64_t rows = block.rows.last - block.rows.first, depth = block.b.terms.last - block.b.terms.first;
  const std::int64_t tile_step = kTransposed ? a.stride : kGemmRows * a.stride;
  // While a panel is computed, each tile prefetches a share of the next block's rows of a (with twelve panels, one row per tile), if both
  // blocks and two panels fit in the second-level cache.
  const std::int64_t panels = block.panels.last - block.panels.first, bytes = rows * depth * static_cast<std::int64_t>(sizeof(T));
  const bool fetch = a.layout == Layout::in_place && block.rows.last + rows <= task.c_rows.count && bytes <= task.prefetch_bytes;
  const std::int64_t share = fetch ? (kGemmRows + panels - 1) / panels : 0;
  for (std::int64_t panel = block.panels.first; panel < block.panels.last; ++panel) {
    const Finish<T> finish(task, panel * kPanelColumns<T>);
    const std::int64_t done = (panel - block.panels.first) * share;
    Tile<T> tile{.terms = {.a = a.data, .a_stride = a.stride, .b = packed_at<T>(block.b, panel, block.b.terms.first)},
                 .depth = depth,
                 .run = task.run,
                 .first = block.rows.first,
                 .sums = block.sums == nullptr ? nullptr : static_cast<T*>(block.sums) + (panel - block.panels.first) * kPanelColumns<T>,
                 .sums_stride = block.sums_stride,
                 .next = {.first = a.data + (rows + done) * a.stride, .stride = a.stride, .count = static_cast<int>(smaller(share, kGemmRows - done))}};
    for (std::int64_t row = 0; row < rows; row += kGemmRows) {
      with_count<kGemmVectors>(finish.vectors(), [&](auto columns) {
        with_count<kGemmRows>(static_cast<int>(smaller(kGemmRows, rows - row)),
                              [&](auto count) { multiply_terms<count(), columns(), kTransposed>(tile, block, finish); });
      });
      tile.terms.a += tile_step;
      tile.next.first += tile_step;
      tile.first += kGemmRows;
      if (block.sums != nullptr) tile.sums += kGemmRows * tile.sums_stride;
    }
  }
}

template <class T>
void multiply_block(const GemmTask& task, const GemmBlock& block, void* memory) {
  const RowsOfA<T> a = rows_of_a<T>(task, block.rows, block.b.terms, static_cast<T*>(memory));
  a.layout == Layout::panels ? multiply_block<true>(task, block, a) : multiply_block<false>(task, block, a);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
