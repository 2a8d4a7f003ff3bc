// Provides the bias and the mask bytes of a strip's rows for one panel of keys, so that a kernel can load whole vectors. Bias and mask bytes are read in place
// if their elements are contiguous, in the compute type and fill whole vectors; else they are copied. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/pack.h"
#include "cpu/sdpa/rows.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// The rows of a strip, and the panel of keys for which their bias and masks are loaded.
struct StripPanel {
  const Row* rows;
  int count;
  std::int64_t first_key, keys;  // keys: number of keys of the panel that exist in the tensor

  StripPanel(const HeadGroup& group, const Row* of_rows, int row_count, std::int64_t key, std::int64_t panel_keys)
      : rows(of_rows), count(row_count), first_key(key), keys(smaller(panel_keys, group.keys - key)) {}
};

// The rows of a bias, or of the bias' tangent, for a panel. load() needs memory for kStripRows x kPanelKeys elements.
template <class T>
class PanelBias {
 public:
  POLYHEAD_INLINE void load(const HeadView& view, DType dtype, const StripPanel& panel, T* memory) {
    const bool in_place = panel.keys % kLanes<T> == 0 && view.column == 1 && dtype == kOwnStorage<T>;
    for (int i = 0; i < panel.count; ++i) {
      T* const copy = memory + i * kPanelKeys<T>;
      rows_[i] = copy;
      with_storage<T>(dtype, view.data, [&](auto* data) {
        const auto* row = row_of(view, data, panel.rows[i]) + panel.first_key * view.column;
        if (in_place) {
          rows_[i] = reinterpret_cast<const T*>(row);
        } else {
          widen_row<T>(row, view.column, panel.keys, T{1}, copy);
        }
      });
    }
  }

  template <int Rows>
  POLYHEAD_INLINE void fetch(int row, std::int64_t at) const {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kTileVectors; ++j) __builtin_prefetch(rows_[row + i] + at + j * kLanes<T>);
    }
  }

  // Sets x to factor x + bias.
  template <int Columns>
  POLYHEAD_INLINE void add(int row, std::int64_t at, T factor, Vector<T> (&x)[Columns]) const {
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) x[j] = multiply_add<T>(x[j], broadcast(factor), load_vector(rows_[row] + at + j * kLanes<T>));
  }

 private:
  const T* rows_[kStripRows];
};

// The boolean masks of a strip's rows for a panel. load() needs memory for KeySet::kMostMasks x kStripRows x kPanelKeys bytes.
template <class T>
class PanelMasks {
 public:
  // `masked` says that some of the keys may be masked. If it is false, no mask bytes are loaded.
  POLYHEAD_INLINE void load(const HeadGroup& group, const StripPanel& panel, bool masked, std::uint8_t* memory) {
    count_ = masked ? group.mask_count : 0;
    for (int m = 0; m < count_; ++m) {
      const BooleanMask& mask = group.masks[m];
      attend_[m] = mask.attend;
      for (int i = 0; i < panel.count; ++i) {
        std::uint8_t* const copy = memory + (m * kStripRows + i) * kPanelKeys<T>;
        if (mask.listed()) {
          masks_[m][i] = mask_bytes(mask, panel.rows[i], panel.first_key, 0, panel.keys, copy);
          continue;
        }
        const std::uint8_t* row = row_of(mask, mask.data, panel.rows[i]) + panel.first_key * mask.column;
        masks_[m][i] = row;
        if (panel.keys % kLanes<T> == 0 && mask.column == 1) continue;
        for (std::int64_t k = 0; k < panel.keys; ++k) copy[k] = row[k * mask.column];
        masks_[m][i] = copy;
      }
    }
  }

  // Sets the scores of masked keys to -infinity. (Adding -infinity would not do, because NaN would stay NaN.)
  template <int Columns>
  POLYHEAD_INLINE void apply(int row, std::int64_t at, Vector<T> (&x)[Columns]) const {
    for (int m = 0; m < count_; ++m) {
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j)
        x[j] = where_bytes<T>(masks_[m][row] + at + j * kLanes<T>, attend_[m], x[j], -kInfinity<T>);
    }
  }

 private:
  const std::uint8_t* masks_[KeySet::kMostMasks][kStripRows];
  bool attend_[KeySet::kMostMasks];
  int count_ = 0;
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
