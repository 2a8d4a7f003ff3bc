// TaskRows holds the rows of a task and the key range of each row. It computes which keys of a key block a row attends to, and products of rows with keys. Only
// kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/amx_product.h"
#include "cpu/sdpa/pack.h"
#include "cpu/sdpa/strip_blocks.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Operand is the type in which rows and keys are multiplied: T or bfloat16 pairs.
template <class T, class Operand = T>
struct TaskRows {
  const HeadGroup& group;
  const Row* rows;
  const KeyRange* spans;  // spans[i] is the key range of row i
  std::int64_t stride;    // distance between rows of an array [row, key of the key block]
  Tiles<Operand>* tiles = nullptr;

  // Returns the keys that row `index` attends to in the key block of `count` keys from key `first` on. The range is relative to `first`. Mask blocks at its
  // beginning and end that a boolean mask skips are left out.
  KeyRange part(std::int64_t index, std::int64_t first, std::int64_t count) const {
    const KeyRange& span = spans[index];
    const KeyRange keys{larger(span.first, first), smaller(span.last, first + count)};
    if (group.mask_count == 0 || keys.empty() || kind_of(group, rows[index]) != RowKind::masked) return {keys.first - first, keys.last - first};
    const KeyRange kept = without_skipped_ends(group, rows[index].head, rows[index].query, keys);
    return {kept.first - first, kept.last - first};
  }

  // Returns the smallest range that holds part() of all rows [begin, end).
  KeyRange keys_of(std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t count) const {
    KeyRange keys{count, 0};
    for (std::int64_t i = begin; i < end; ++i) {
      const KeyRange own = part(i, first, count);
      if (!own.empty()) keys = {smaller(keys.first, own.first), larger(keys.last, own.last)};
    }
    return keys;
  }

  // Returns whether a key block contains all keys of the row. range_of() is used instead of narrow_range_of(), because the row's bits must not depend on which
  // mask blocks are skipped.
  bool in_one_block(std::int64_t index, std::int64_t first, std::int64_t count) const {
    const KeyRange all = range_of(group, rows[index]);
    return all.first >= first && all.last - first <= count;
  }

  StripBlocks blocks_of(std::int64_t begin, int count) const {
    StripBlocks blocks;
    blocks.begin(group);
    blocks.add(group, rows + begin, count);
    return blocks;
  }

  // Returns a row of a tensor: in place if possible, else widened to the compute type in `line`.
  const T* line_of(const HeadView& view, const Row& row, std::int64_t width, T* line) const {
    if (group.dtype == kOwnStorage<T> && view.column == 1) return row_of(view, static_cast<const T*>(view.data), row);
    with_storage<T>(group.dtype, view.data, [&](auto* data) { widen_row<T>(row_of(view, data, row), view.column, width, T{1}, line); });
    return line;
  }

  // Copies the rows [block, block + count) of a tensor, multiplied by `factor`. Returns whether all elements are finite.
  bool load(const HeadView& view, std::int64_t block, int count, std::int64_t width, std::int64_t padded, T factor, T* to) const {
    return with_storage<T>(group.dtype, view.data, [&](auto* data) {
      bool finite = true;
      for (int i = 0; i < count;) {  // each step copies the rows that belong to one head
        const Row& row = rows[block + i];
        const int run = static_cast<int>(smaller(count - i, group.queries - row.query));
        finite &= copy_rows<T>(row_of(view, data, row), view.row, view.column, run, width, padded, factor, to + i * padded);
        i += run;
      }
      return finite;
    });
  }

  // Packs `count` rows of k or v, or of their tangents, from key `first` on into panels. `lines` is scratch for kLanes rows.
  void pack_keys(const HeadView& view, std::int64_t first, std::int64_t count, std::int64_t width, T* lines, T* panels) const {
    with_storage<T>(group.dtype, view.data, [&](auto* data) {
      pack_transposed(StoredRows(data + first * view.row, view, width, group.keys - first, T{1}), static_cast<int>(count), lines, panels);
    });
  }

  // Copies rows of k or v, with NaN and infinities replaced by 0. Returns true if all elements were finite.
  bool copy_keys(const HeadView& view, std::int64_t first, std::int64_t count, std::int64_t width, std::int64_t padded, T* to) const {
    const bool finite = with_storage<T>(group.dtype, view.data, [&](auto* data) {
      return copy_rows<T>(data + first * view.row, view.row, view.column, static_cast<int>(count), width, padded, T{1}, to);
    });
    if (!finite) zero_non_finite(to, count * padded, to);
    return finite;
  }

  // Computes a product whose operand b is in the second-level cache.
  void multiply_rows(const Product<T, Operand>& product, int count, int vectors) const {
    if constexpr (kUsesAmx<Operand>) {
      TileSums sums(*tiles);
      multiply_double_strip_and_store(sums, product, count, vectors);
    } else {
      multiply<false, From::second_cache>(product, count, vectors);
    }
  }

  // Computes c = a b or, if `add`, c += a b, for the panels of keys that the mask does not skip. The other panels of c are not written, and no row reads them.
  void multiply_panels(const T* a, std::int64_t a_stride, const T* panels, std::int64_t depth, int count, std::int64_t first, KeyRange keys,
                       const StripBlocks& blocks, T* c, bool add = false) const {
    for_each_panel<T>(keys.first, keys.last, [&](std::int64_t panel, std::int64_t begin, int vectors) {
      if (blocks.at(first + panel) == BlockKind::skip) return;
      const Operand* const b = reinterpret_cast<const Operand*>(panels) + panel * depth + (begin - panel);
      multiply_rows({.depth = depth,
                     .a = reinterpret_cast<const Operand*>(a),
                     .a_stride = a_stride,
                     .b = b,
                     .b_stride = kPanelKeys<T>,
                     .c = c + begin,
                     .c_stride = stride,
                     .add = add},
                    count, vectors);
    });
  }

  // Adds sum_i a[i,key] b[i] to sums[key] for each key of `block_keys`, where i runs over the rows of the strips that attend to the key.
  void multiply_columns(const T* a, int count, const KeyRange* strips, KeyRange block_keys, const T* b, std::int64_t padded, T* sums) const {
    constexpr std::int64_t kPerTerm = std::is_same_v<Operand, Bf16Pair> ? 2 : 1;  // number of rows in one term of the product
    for (std::int64_t key = block_keys.first; key < block_keys.last; key += kStripRows) {
      const int height = static_cast<int>(smaller(kStripRows, block_keys.last - key));
      int begin = count, end = 0;  // the rows [begin, end) whose strips attend to any of these keys
      for (int strip = 0; strip < count; strip += kStripRows) {
        const KeyRange& keys = strips[strip / kStripRows];
        if (keys.empty() || keys.last <= key || keys.first >= key + height) continue;
        begin = begin < strip ? begin : strip, end = strip + kStripRows < count ? strip + kStripRows : count;
      }
      if (end <= begin) continue;
      begin = static_cast<int>(begin / kPerTerm * kPerTerm);
      const Product<T, Operand> product{.depth = (end - begin + kPerTerm - 1) / kPerTerm,
                                        .a = reinterpret_cast<const Operand*>(a) + begin / kPerTerm * stride + key,
                                        .a_stride = stride,
                                        .b = reinterpret_cast<const Operand*>(b) + begin / kPerTerm * padded,
                                        .b_stride = padded,
                                        .c = sums + key * padded,
                                        .c_stride = padded,
                                        .add = true};
      multiply<true, From::second_cache>(product, height, static_cast<int>(padded / kLanes<T>));
    }
  }
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
