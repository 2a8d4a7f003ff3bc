// The products of the forward pass with AMX tiles. The operands are the bfloat16 pairs of forward_bf16.h. Only kernel sources (*_kernel.cc) include this file.
//
// A row must have the same bits whether its task has few rows or many (docs/promises.md), and AMX tiles add in another order than vector code. So tasks of few
// rows use AMX tiles too. They pack k and v a panel at a time into copies that stay in the first-level cache.
#pragma once

#include "cpu/amx_product.h"
#include "cpu/sdpa/forward_bf16.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

class AmxOperands : public Bf16Operands {
 public:
  using Bf16Operands::Bf16Operands;

  // Computes c = q k^T for the strip's `rows` rows, from row `strip` on, and the keys [begin, end) of a panel of the key block. end - begin must be a multiple of
  // 32. The products of the last 32 keys are stored only by the next call or by finish_keys().
  void multiply_keys(std::int64_t strip, int rows, std::int64_t panel, std::int64_t begin, std::int64_t end, float* c, std::int64_t c_stride) {
    multiply_double_strip(sums_,
                  {.depth = s_->depth, .a = q(strip), .a_stride = q_stride(), .b = k_panel(panel) + (begin - panel), .b_stride = kPanel, .c = c, .c_stride = c_stride},
                  rows, static_cast<int>((end - begin) / kWidth));
  }
  void finish_keys() { sums_.finish(); }

  void multiply_values(const Product<float, Bf16Pair>& product, int rows) {
    multiply_double_strip_and_store(sums_, product, rows, static_cast<int>(s_->v_padded / kWidth));
  }

  // Multiplies the exponentials by v for `keys` of the key block, reading v from the caller's tensor. Returns true if the quotient c / divisor was stored,
  // false if c was stored.
  bool multiply_stored_values(const Product<float, Bf16Pair>& product, KeyRange keys, int rows) {
    const StoredBf16Values values = stored_values(keys);
    return multiply_unless_non_finite(task_, *s_, product, rows, finite_, [&](const Product<float, Bf16Pair>& sums, bool only_finite) {
      for (std::int64_t column = 0; column < task_.v_width; column += kPanel) {
        only_finite ? multiply_value_columns<true>(sums, values, rows, column) : multiply_value_columns<false>(sums, values, rows, column);
      }
    });
  }

 private:
  // Returns the panel that begins at key `panel` of the key block. For a task of few rows, this call packs the panel, which then stays in the first-level cache
  // until the next panel is packed.
  const Bf16Pair* k_panel(std::int64_t panel) {
    if (!few_rows<float>(task_)) return k_ + panel * s_->depth;
    Bf16Pair* const to = words(s_->k);
    if (!has_stored_panel(panel)) {
      pack_keys(panel, smaller(kPanel, block_.last - panel), to);
      return to;
    }
    const StoredRows<float, bf16> keys = stored_keys(first_ + panel);
    for (int key = 0; key < kPanel; key += kWidth) {  // packs the panel as pack_keys() does, and also prefetches
      transpose_words(keys, key, [=](std::int64_t i, Vector<std::int32_t> x) __attribute__((always_inline)) {
        store_vector<std::int32_t>(x, &to[i * kPanel + key].bits);
      });
    }
    return to;
  }

  // Computes kTileVectors vectors of c, beginning at column `column`. Values are packed into pairs of keys, one block of terms at a time (4 KiB).
  template <bool kFinite>
  void multiply_value_columns(const Product<float, Bf16Pair>& product, const StoredBf16Values& values, int rows, std::int64_t column) {
    alignas(64) Bf16Pair pairs[kTermBlock * kPanel];
    alignas(64) float sums[kRowBlock * kPanel];
    const auto pair_keys = [&](std::int64_t term) {
      for (int i = 0; i < kTermBlock; ++i) {
        Vector<std::int32_t> line[kTileVectors];
        values.template load_pairs<kFinite>(term + i, column, line);
        for (int j = 0; j < kTileVectors; ++j) store_vector<std::int32_t>(line[j], &pairs[i * kPanel + j * kWidth].bits);
      }
      return pairs;
    };
    multiply_block<kTileVectors>(tiles_, product.depth, product.a, product.a_stride, pair_keys, kPanel, sums, kPanel);
    store_sums<kTileVectors>(product, sums, 0, rows, column);
  }

  AmxTiles tiles_;
  TileSums sums_{tiles_};
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
