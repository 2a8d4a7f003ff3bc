// c = a b of bfloat16 pairs by AMX: one instruction multiplies 16 rows x 16 pairs by 16 pairs x 16 columns. For kernel sources only.
// Operands are read 16 rows and kTermBlock terms at a time, whatever their sizes. Terms are padded with zeros. Padding of rows and columns may hold
// anything, because it affects only rows and columns of c that are not stored. A block of terms is summed from 0 before it is added to c, so the bits
// of a sum depend on where blocks begin: callers begin at multiples of kTermBlock.
#pragma once

#include "cpu/tile.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// The AMX tiles of a kernel; NoTiles if its operands are not multiplied by AMX.
struct NoTiles {};
template <class Operand>
inline constexpr bool kUsesAmx = kHasAmx && std::is_same_v<Operand, Bf16Pair>;
template <class Operand>
using Tiles = std::conditional_t<kUsesAmx<Operand>, AmxTiles, NoTiles>;

// Computes 16 rows x `Columns` vectors of c. b_of(k) returns the address of the block of b that begins at term k. Four products of 16 cycles cover
// five loads of 8.
template <int Columns, class F>
void multiply_block(AmxTiles& tiles, std::int64_t depth, const Bf16Pair* a, std::int64_t a_stride, const F& b_of, std::int64_t b_stride, float* c, std::int64_t c_stride) {
  static_assert(Columns <= 4);  // four registers of sums, one of a, three of b
  [&]<int... j>(std::integer_sequence<int, j...>) {
    (tiles.template zero<j>(), ...);
    for (std::int64_t k = 0; k < depth; k += kTermBlock) {
      const Bf16Pair* const b = b_of(k);
      tiles.template load<4>(a + k, a_stride * 4);
      ((tiles.template load<5 + j % 3>(b + j * 16, b_stride * 4), tiles.template multiply<j, 4, 5 + j % 3>()), ...);
    }
    (tiles.template store<j>(c + j * 16, c_stride * 4), ...);
  }(std::make_integer_sequence<int, Columns>{});
}

// Computes each block of c into the memory that to(row, column) returns, with rows `stride` apart. Then calls f(count, row, column) for its `count` vectors.
template <class To, class F>
void multiply_blocks(AmxTiles& tiles, const Product<float, Bf16Pair>& product, int rows, int vectors, const To& to, std::int64_t stride, const F& f) {
  for (int done = 0; done < vectors; done += kTileVectors) {
    const std::int64_t column = std::int64_t{done} * kLanes<float>;
    with_count<kTileVectors>(vectors - done < kTileVectors ? vectors - done : kTileVectors, [&](auto count) {
      for (int row = 0; row < rows; row += kRowBlock) {
        const auto b_of = [&](std::int64_t k) { return product.b + k * product.b_stride + column; };
        multiply_block<count()>(tiles, product.depth, product.a + row * product.a_stride, product.a_stride, b_of, product.b_stride, to(row, column), stride);
        f(count, row, column);
      }
    });
  }
}

// Computes c, rounded up to whole blocks of 16 rows, for which c has memory.
inline void multiply_whole_blocks(AmxTiles& tiles, const Product<float, Bf16Pair>& product, int rows, int vectors) {
  const auto to = [&](int row, std::int64_t column) { return product.c + row * product.c_stride + column; };
  multiply_blocks(tiles, product, rows, vectors, to, product.c_stride, [](auto, int, std::int64_t) {});
}

// Computes `rows` rows of `Columns` vectors of the product from their sums, which are kTileVectors vectors apart.
template <int Columns>
void store_sums(const Product<float, Bf16Pair>& product, const float* sums, int row, int rows, std::int64_t column) {
  for (const int end = row + rows; row < end; ++row, sums += kTileVectors * kLanes<float>) {
    Vector<float> line[1][Columns];
    for_each_vector<1, Columns, float>(line, [&](int, int j, Vector<float>& sum) { sum = load_vector(sums + j); });
    store_tile(product, row, column, line);
  }
}

// multiply() (cpu/tile.h) for a that is not transposed.
inline void multiply_by_tiles(AmxTiles& tiles, const Product<float, Bf16Pair>& product, int rows, int vectors) {
  alignas(64) float sums[kRowBlock * kTileVectors * kLanes<float>];
  multiply_blocks(tiles, product, rows, vectors, [&](int, std::int64_t) { return sums; }, kTileVectors * kLanes<float>, [&](auto count, int row, std::int64_t column) {
    store_sums<count()>(product, sums, row, rows - row < kRowBlock ? rows - row : kRowBlock, column);
  });
}

// Computes blocks of at most 32 rows x 32 columns of products, one after the other. Each sum is stored when its register is needed again, by the next block or by
// finish(): a tile store that follows the last product of its sum at once stalls the products (179 cycles instead of 128 for 8 products and 4 stores).
class DelayedSums {
 public:
  explicit DelayedSums(AmxTiles& tiles) : tiles_(tiles) {}

  // c = a b for kRows blocks of 16 rows and kColumns vectors. b is read past the first-level cache.
  template <int kRows, int kColumns>
  POLYHEAD_INLINE void multiply(std::int64_t depth, const Bf16Pair* a, std::int64_t a_stride, const Bf16Pair* b, std::int64_t b_stride, float* c, std::int64_t c_stride) {
    multiply_terms<kRows, kColumns, true>(a, a_stride, b, b_stride);
    for (std::int64_t k = kTermBlock; k < depth; k += kTermBlock) multiply_terms<kRows, kColumns, false>(a + k, a_stride, b + k * b_stride, b_stride);
    c_ = c, c_stride_ = c_stride, rows_ = kRows, columns_ = kColumns;
  }

  void finish() {
    store<0, 0>(), store<1, 0>(), store<0, 1>(), store<1, 1>();
    c_ = nullptr;
  }

 private:
  template <int kRows, int kColumns, bool kFirst>
  POLYHEAD_INLINE void multiply_terms(const Bf16Pair* a, std::int64_t a_stride, const Bf16Pair* b, std::int64_t b_stride) {
    tiles_.load<4>(a, a_stride * 4);
    tiles_.load_once<6>(b, b_stride * 4);
    multiply_tile<0, 0, kFirst>();
    if constexpr (kRows > 1) {
      tiles_.load<5>(a + 16 * a_stride, a_stride * 4);
      multiply_tile<1, 0, kFirst>();
    }
    if constexpr (kColumns > 1) {
      tiles_.load_once<7>(b + 16, b_stride * 4);
      multiply_tile<0, 1, kFirst>();
      if constexpr (kRows > 1) multiply_tile<1, 1, kFirst>();
    }
    if constexpr (kFirst && kRows == 1) store<1, 0>(), store<1, 1>();
    if constexpr (kFirst && kColumns == 1) store<0, 1>(), store<1, 1>();
    if constexpr (kFirst) c_ = nullptr;
  }

  template <int kRow, int kColumn, bool kFirst>
  POLYHEAD_INLINE void multiply_tile() {
    if constexpr (kFirst) {
      store<kRow, kColumn>();
      tiles_.zero<2 * kColumn + kRow>();
    }
    tiles_.multiply<2 * kColumn + kRow, 4 + kRow, 6 + kColumn>();
  }

  template <int kRow, int kColumn>
  POLYHEAD_INLINE void store() const {
    if (c_ != nullptr && kRow < rows_ && kColumn < columns_) tiles_.store<2 * kColumn + kRow>(c_ + kRow * 16 * c_stride_ + kColumn * 16, c_stride_ * 4);
  }

  AmxTiles& tiles_;
  float* c_ = nullptr;  // where the sums in registers belong; nullptr: there are none
  std::int64_t c_stride_ = 0;
  int rows_ = 0, columns_ = 0;
};

// multiply_by_tiles() for at most 32 rows.
inline void multiply_strip_by_tiles(AmxTiles& tiles, const Product<float, Bf16Pair>& product, int rows, int vectors) {
  constexpr std::int64_t kStride = kTileVectors * kLanes<float>;
  alignas(64) float sums[2 * kRowBlock * kStride];
  DelayedSums blocks(tiles);
  for (int done = 0; done < vectors; done += kTileVectors) {
    const int here = vectors - done < kTileVectors ? vectors - done : kTileVectors;
    for (int at = 0; at < here; at += 2) {
      with_count<2>(here - at < 2 ? 1 : 2, [&](auto columns) {
        const Bf16Pair* const b = product.b + (done + at) * kLanes<float>;
        float* const to = sums + at * kLanes<float>;
        rows > kRowBlock ? blocks.multiply<2, columns()>(product.depth, product.a, product.a_stride, b, product.b_stride, to, kStride)
                         : blocks.multiply<1, columns()>(product.depth, product.a, product.a_stride, b, product.b_stride, to, kStride);
      });
    }
    blocks.finish();
    with_count<kTileVectors>(here, [&](auto count) { store_sums<count()>(product, sums, 0, rows, std::int64_t{done} * kLanes<float>); });
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
