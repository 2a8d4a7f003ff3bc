// Provides bfloat16 q, k and v to the forward kernel as pairs (cpu/bf16_pairs.h), in the order in which its tiles read them. forward_operands.h does the same
// for operands of type T. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/forward_operands.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Rows of v, read from the caller's tensor. A term of the product p v is a pair of two keys. Values of keys outside of `keys` count as 0.
struct StoredBf16Values {
  const bf16* data;  // address of the row of key 0
  std::int64_t stride;
  KeyRange keys;
  const bf16* zeros;  // a row of zeros, which is read for keys outside of `keys`

  const bf16* row(std::int64_t key) const { return key >= keys.first && key < keys.last ? data + key * stride : zeros; }

  // Loads the pairs of term `term` for the columns from `column` on. If kFinite, NaN and infinities count as 0.
  template <bool kFinite>
  POLYHEAD_INLINE void load_pairs(std::int64_t term, std::int64_t column, Vector<std::int32_t> (&pairs)[kTileVectors]) const {
    constexpr std::int64_t kTile = kTileVectors * kLanes<float>, kNear = 64, kFar = 256;  // kNear, kFar: how many keys ahead v is prefetched
    const std::int64_t key = keys.first / (2 * kTermBlock) * (2 * kTermBlock) + 2 * term;
    const bf16 *first = row(key) + column, *second = row(key + 1) + column;
#pragma GCC unroll 2
    for (int line = 0; line < kTile; line += 32) {
      __builtin_prefetch(first + kNear * stride + line), __builtin_prefetch(second + kNear * stride + line);
      __builtin_prefetch(first + kFar * stride + line, 0, 2), __builtin_prefetch(second + kFar * stride + line, 0, 2);
    }
    Vector<std::int32_t> non_finite{};
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      pairs[v] = load_shorts(&first[v * kLanes<float>].bits) | load_shorts(&second[v * kLanes<float>].bits) << 16;
      if constexpr (kFinite) pairs[v] = finite_halves(pairs[v], non_finite);
    }
  }
};

// Computes the columns [column, end) of c for bfloat16 pairs, as multiply_wide_rows() does for operands of type T.
template <int Rows, bool kFinite>
void multiply_value_rows(const Product<float, Bf16Pair>& product, const StoredBf16Values& values, int row, std::int64_t column, std::int64_t end) {
  constexpr std::int64_t kTile = kTileVectors * kLanes<float>, kTerms = 16384 / (kWideColumns<float> * 4);
  struct Tile {
    Vector<float> sums[Rows][kTileVectors];
  } tiles[kWideColumns<float> / kTile] = {};
  for (std::int64_t term = 0; term < product.depth; term += kTerms) {
    const std::int64_t last = smaller(term + kTerms, product.depth);
    Tile* tile = tiles;
    for (std::int64_t j = column; j < end; j += kTile, ++tile) {
      Tile in_registers = *tile;
      for (std::int64_t i = term; i < last; ++i) {
        Vector<std::int32_t> pairs[kTileVectors];
        values.load_pairs<kFinite>(i, j, pairs);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const Vector<std::int32_t> p = broadcast_factor(product.a[(row + r) * product.a_stride + i]);
#pragma GCC unroll 4
          for (int v = 0; v < kTileVectors; ++v) add_product<float>(in_registers.sums[r][v], p, pairs[v]);
        }
      }
      *tile = in_registers;
    }
  }
  for (Tile* tile = tiles; column < end; column += kTile, ++tile) store_tile(product, row, column, tile->sums);
}

class Bf16Operands {
 public:
  // q_factor is the power of two by which q is multiplied.
  Bf16Operands(const ForwardTask& task, float q_factor, const Scratch<float>& scratch) : task_(task), q_factor_(q_factor), s_(&scratch) {}

  const Bf16Pair* q(std::int64_t row) const { return words(s_->q) + row * s_->depth; }
  std::int64_t q_stride() const { return s_->depth; }
  const Bf16Pair* v() const { return v_; }
  bool finite() const { return finite_; }  // false: v of the key block had NaN or infinities, which were replaced by 0

  void load_queries() {
    for (std::int64_t i = 0; i < task_.rows; ++i)
      pack_bf16_neighbours(row_of(task_.q, static_cast<const bf16*>(task_.q.data), s_->rows[i]), task_.q.column, task_.qk_width, q_factor_, words(s_->q) + i * s_->depth);
  }

  // Returns the panel that begins at key `panel` of the key block. For a task of few rows, this call packs the panel, which then stays in the first-level cache
  // until the next panel is packed.
  const Bf16Pair* k_panel(std::int64_t panel) {
    if (!few_rows<float>(task_)) return k_ + panel * s_->depth;
    pack_keys(panel, smaller(kPanel, block_.last - panel), words(s_->k));
    return words(s_->k);
  }

  // Loads k and v of the keys first + `block`. If `again`, an earlier pass has packed these keys, and the packed keys are still in memory.
  void load_keys(std::int64_t first, KeyRange block, std::uint64_t wanted, bool again) {
    first_ = first, block_ = block;
    const std::int64_t from = block.first / kPanel * kPanel, place = s_->keeps_keys ? first : 0, count = block.last - from;
    k_ = words(s_->k) + place * s_->depth;
    Bf16Pair* const v = words(s_->v) + place / 2 * s_->v_padded;
    std::uint8_t& all_of_block = s_->finite[place / s_->keys];
    if (!again) {
      if (!few_rows<float>(task_))
        for_each_wanted(wanted, {from, block.last}, [&](std::int64_t key, int keys) { pack_keys(key, keys, words(s_->k) + (place + key) * s_->depth); });
      if (reads_stored_values<float>(task_)) {
        clear(s_->v, 0, bf16_pairs_of(s_->v_padded));  // this row of zeros serves as StoredBf16Values::zeros
        all_of_block = 1;
      } else {
        const bool ready = pack_bf16_rows(values_at(first + from), task_.v.row, task_.v.column, count, task_.v_width, s_->v_padded, v + from / 2 * s_->v_padded);
        all_of_block = ready ? 1 : 0;
      }
    }
    finite_ = all_of_block != 0;
    v_ = v;
  }

  // For a task of few rows, computes c = q k^T of `rows` rows with a whole panel of the key block, reading the keys from the caller's tensor. Returns false,
  // and computes nothing, if the panel must be packed first. With rows == 0 nothing is computed, and the result says whether the panel can be read.
  bool multiply_stored_keys(const Bf16Pair* q, int rows, std::int64_t panel, float* c, std::int64_t c_stride) const {
    if (!few_rows<float>(task_) || !has_stored_panel(panel)) return false;
    if (rows == 0) return true;
    for_each_tile(rows, [&](int row, auto count) { multiply_keys<count()>(first_ + panel, q + row * q_stride(), c + row * c_stride, c_stride); });
    return true;
  }

  // Multiplies the exponentials by v for `keys` of the key block, reading v from the caller's tensor. Returns true if the quotient c / divisor was stored,
  // false if c was stored.
  bool multiply_stored_values(const Product<float, Bf16Pair>& product, KeyRange keys, int rows) {
    const StoredBf16Values values = stored_values(keys);
    return multiply_unless_non_finite(task_, *s_, product, rows, finite_, [&](const Product<float, Bf16Pair>& sums, bool only_finite) {
      for (std::int64_t column = 0; column < task_.v_width; column += kWideColumns<float>) {
        const std::int64_t end = smaller(column + kWideColumns<float>, task_.v_width);
        for_each_tile(rows, [&](int row, auto count) {
          only_finite ? multiply_value_rows<count(), true>(sums, values, row, column, end) : multiply_value_rows<count(), false>(sums, values, row, column, end);
        });
      }
    });
  }

  void fetch_queries(std::int64_t, int) const {}

 protected:
  static constexpr int kWidth = kLanes<float>;
  static constexpr std::int64_t kPanel = kPanelKeys<float>;

  static Bf16Pair* words(float* array) { return reinterpret_cast<Bf16Pair*>(array); }

  const bf16* values_at(std::int64_t key) const { return static_cast<const bf16*>(task_.v.data) + key * task_.v.row; }
  StoredBf16Values stored_values(KeyRange keys) const { return {values_at(first_), task_.v.row, keys, reinterpret_cast<const bf16*>(s_->v)}; }

  // Returns whether a panel of keys can be read from the caller's tensor and transposed in registers.
  bool has_stored_panel(std::int64_t panel) const { return task_.k.column == 1 && panel + kPanel <= block_.last && task_.qk_width % (2 * kWidth) == 0; }
  StoredRows<float, bf16> stored_keys(std::int64_t first) const {
    return {static_cast<const bf16*>(task_.k.data) + first * task_.k.row, task_.k, task_.qk_width, task_.keys - first, 1};
  }

  // Transposes keys in registers and multiplies them immediately. A packed copy of the panel would fill the first-level cache and be read only once.
  template <int Rows>
  __attribute__((noinline)) void multiply_keys(std::int64_t first, const Bf16Pair* q, float* c, std::int64_t c_stride) const {
    const StoredRows<float, bf16> keys = stored_keys(first);
    for (int key = 0; key < kPanel; key += kWidth) {
      Vector<float> sums[Rows] = {};
      transpose_words(keys, key, [&](std::int64_t i, Vector<std::int32_t> x) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) add_product<float>(sums[r], broadcast_factor(q[r * q_stride() + i]), x);
      });
      for (int r = 0; r < Rows; ++r) store_vector<float>(sums[r], c + r * c_stride + key);
    }
  }

  __attribute__((noinline)) void pack_keys(std::int64_t key, std::int64_t count, Bf16Pair* to) const {
    pack_bf16_transposed(static_cast<const bf16*>(task_.k.data) + (first_ + key) * task_.k.row, task_.k.row, task_.k.column, count, task_.qk_width,
                    static_cast<int>(kPanel), to);
  }

  const ForwardTask& task_;
  const float q_factor_;
  const Scratch<float>* s_;
  std::int64_t first_ = 0;
  KeyRange block_{0, 0};
  const Bf16Pair *k_ = nullptr, *v_ = nullptr;
  bool finite_ = true;
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
