// Bias and mask bytes of a strip's rows for one panel of keys, to be read in whole vectors: in place if the keys are contiguous, in the
// compute type and fill whole vectors, else copied. For kernel sources only.
#pragma once

#include "cpu/sdpa/backward_scratch.h"
#include "cpu/sdpa/pack.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
class PanelRows {
 public:
  // Loads `count` rows, from row `first` on, of the panel whose first key is first_key + panel. masked: some of its keys may be masked;
  // otherwise no mask bytes are loaded.
  POLYHEAD_INLINE void load(const HeadGroup& group, const BackwardScratch<T>& s, std::int64_t first, int count, std::int64_t first_key,
                            std::int64_t panel, bool masked) {
    const std::int64_t key = first_key + panel, keys = smaller(kPanelKeys<T>, group.keys - key);
    const bool vectors = keys % kLanes<T> == 0;
    if (group.bias.data != nullptr) {
      const bool in_place = vectors && group.bias.column == 1 && group.bias_dtype == kOwnStorage<T>;
      for (int i = 0; i < count; ++i) {
        bias_[i] = s.panel_bias + i * kPanelKeys<T>;
        with_storage<T>(group.bias_dtype, group.bias.data, [&](auto* data) {
          const auto* row = row_of(group.bias, data, s.rows[first + i]) + key * group.bias.column;
          if (in_place) {
            bias_[i] = reinterpret_cast<const T*>(row);
          } else {
            widen_row<T>(row, group.bias.column, keys, T{1}, s.panel_bias + i * kPanelKeys<T>);
          }
        });
      }
    }
    mask_count_ = masked ? group.plane_count : 0;
    for (int m = 0; m < mask_count_; ++m) {
      const BooleanPlane& mask = group.planes[m];
      attend_[m] = mask.attend;
      for (int i = 0; i < count; ++i) {
        const std::uint8_t* row = row_of(mask, mask.data, s.rows[first + i]) + key * mask.column;
        masks_[m][i] = row;
        if (vectors && mask.column == 1) continue;
        std::uint8_t* const copy = s.panel_bytes + (m * kStripRows + i) * kPanelKeys<T>;
        for (std::int64_t k = 0; k < keys; ++k) copy[k] = row[k * mask.column];
        masks_[m][i] = copy;
      }
    }
  }

  template <int Rows>
  POLYHEAD_INLINE void fetch_bias(int row, std::int64_t at) const {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kTileVectors; ++j) __builtin_prefetch(bias_[row + i] + at + j * kLanes<T>);
    }
  }

  // x = factor x + bias
  template <int Columns>
  POLYHEAD_INLINE void add_bias(int row, std::int64_t at, T factor, Vector<T> (&x)[Columns]) const {
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) x[j] = multiply_add<T>(x[j], broadcast(factor), load_vector(bias_[row] + at + j * kLanes<T>));
  }

  // Sets masked scores to -infinity. Adding -infinity would keep a NaN.
  template <int Columns>
  POLYHEAD_INLINE void apply_masks(int row, std::int64_t at, Vector<T> (&x)[Columns]) const {
    for (int m = 0; m < mask_count_; ++m) {
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j)
        x[j] = where_bytes<T>(masks_[m][row] + at + j * kLanes<T>, attend_[m], x[j], -kInfinity<T>);
    }
  }

 private:
  const T* bias_[kStripRows];
  const std::uint8_t* masks_[KeySet::kMostPlanes][kStripRows];
  bool attend_[KeySet::kMostPlanes];
  int mask_count_ = 0;
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
