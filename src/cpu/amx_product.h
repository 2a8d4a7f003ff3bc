// Computes c = a b for bfloat16 pairs with AMX: one instruction multiplies 16 rows x 16 pairs by 16 pairs x 16 columns. Only kernel sources (*_kernel.cc)
// include this file. Operands are read 16 rows and kTermBlock terms at a time, whatever their sizes. Terms are padded with zeros. Padding of rows and columns
// may hold anything, because it affects only rows and columns of c that are not stored. Each kTermBlock terms are summed from 0 before they are added to c, so
// the bits of a sum depend on which terms are summed together: callers begin at multiples of kTermBlock.
#pragma once

#include "cpu/tile.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Tiles<Operand> is the type of a kernel's AMX tiles: AmxTiles, or NoTiles if the operands are not multiplied by AMX.
struct NoTiles {};
template <class Operand>
inline constexpr bool kUsesAmx = kHasAmx && std::is_same_v<Operand, Bf16Pair>;
template <class Operand>
using Tiles = std::conditional_t<kUsesAmx<Operand>, AmxTiles, NoTiles>;

// Computes 16 rows x `Columns` vectors of c. b_of(k) returns the address of the tile of b that begins at term k. With four columns, the five loads of a step (8
// cycles each) run during its four products (16 cycles each).
template <int Columns, class F>
void multiply_block(AmxTiles& tiles, std::int64_t depth, const Bf16Pair* a, std::int64_t a_stride, const F& b_of, std::int64_t b_stride, float* c, std::int64_t c_stride) {
  static_assert(Columns <= 4);  // the eight tile registers hold four tiles of sums, one of a and three of b
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

// Stores `rows` rows of `Columns` vectors of sums in product.c, with the scale and the addition that the members of `product` request. Rows of `sums` are
// kTileVectors vectors apart.
template <int Columns>
void store_sums(const Product<float, Bf16Pair>& product, const float* sums, int row, int rows, std::int64_t column) {
  for (const int end = row + rows; row < end; ++row, sums += kTileVectors * kLanes<float>) {
    Vector<float> line[1][Columns];
    for_each_vector<1, Columns, float>(line, [&](int, int j, Vector<float>& sum) { sum = load_vector(sums + j); });
    store_tile(product, row, column, line);
  }
}

// Up to 2 x 2 tiles of sums in the tile registers 0 to 3: register i holds the tile in row i % 2 and column i / 2. A register is stored only when it is needed
// for other sums: a store directly after the register's last product would wait for this product, and later products would wait for the store.
class TileSums {
 public:
  explicit TileSums(AmxTiles& tiles) : tiles_(tiles) {}

  // Begins the sums of new tiles of c, the first of which is at address `c`. The next call of add() sets them. next_row and next_column are the distances
  // between the tiles of c.
  POLYHEAD_INLINE void begin(float* c, std::int64_t stride, std::int64_t next_row, std::int64_t next_column) {
    earlier_ = now_, now_ = {c, stride, next_row, next_column, 0, 0};
  }

  // Adds the products of one block of terms. Tiles of a are next_a apart, tiles of b next_b. If kAdd, the sums begin with the values in c, else with 0.
  template <int Rows, int Columns, bool kAdd>
  POLYHEAD_INLINE void add(const Bf16Pair* a, std::int64_t a_stride, std::int64_t next_a, const Bf16Pair* b, std::int64_t b_stride, std::int64_t next_b) {
    now_.rows == 0 ? add_tiles<Rows, Columns, true, kAdd>(a, a_stride, next_a, b, b_stride, next_b) : add_tiles<Rows, Columns, false, kAdd>(a, a_stride, next_a, b, b_stride, next_b);
    now_.rows = Rows, now_.columns = Columns;
  }

  // Stores the sums that are still in registers.
  void finish() {
    earlier_ = now_, now_ = {};
    store<0>(), store<1>(), store<2>(), store<3>();
  }

 private:
  struct Place {
    float* c = nullptr;
    std::int64_t stride = 0, next_row = 0, next_column = 0;
    int rows = 0, columns = 0;  // if rows is 0, no sums are in the registers

    template <int kTile>
    float* tile() const {
      return c + kTile % 2 * next_row + kTile / 2 * next_column;
    }
  };

  template <int Rows, int Columns, bool kBegin, bool kAdd>
  POLYHEAD_INLINE void add_tiles(const Bf16Pair* a, std::int64_t a_stride, std::int64_t next_a, const Bf16Pair* b, std::int64_t b_stride, std::int64_t next_b) {
    set<0, true, kBegin, kAdd>();
    tiles_.template load<4>(a, a_stride * 4), tiles_.template load_once<6>(b, b_stride * 4), tiles_.template multiply<0, 4, 6>();
    set<1, Rows == 2, kBegin, kAdd>();
    if constexpr (Rows == 2) tiles_.template load<5>(a + next_a, a_stride * 4), tiles_.template multiply<1, 5, 6>();
    set<2, Columns == 2, kBegin, kAdd>();
    if constexpr (Columns == 2) tiles_.template load_once<7>(b + next_b, b_stride * 4), tiles_.template multiply<2, 4, 7>();
    set<3, Rows == 2 && Columns == 2, kBegin, kAdd>();
    if constexpr (Rows == 2 && Columns == 2) tiles_.template multiply<3, 5, 7>();
  }

  // Stores the earlier tile's sums that the register still holds. If kUsed, then sets the register to the initial sums of the new tile.
  template <int kTile, bool kUsed, bool kBegin, bool kAdd>
  POLYHEAD_INLINE void set() {
    if constexpr (kBegin) store<kTile>();
    if constexpr (kBegin && kUsed) {
      if constexpr (kAdd) {
        tiles_.template load<kTile>(now_.tile<kTile>(), now_.stride * 4);
      } else {
        tiles_.template zero<kTile>();
      }
    }
  }

  template <int kTile>
  POLYHEAD_INLINE void store() const {
    if (kTile % 2 < earlier_.rows && kTile / 2 < earlier_.columns) tiles_.template store<kTile>(earlier_.tile<kTile>(), earlier_.stride * 4);
  }

  AmxTiles& tiles_;
  Place now_, earlier_;
};

// Calls f(rows, columns) with the number of tile rows and of tile columns to compute at a time. Each number is 2, or 1 if only one is left.
template <class F>
POLYHEAD_INLINE void with_tiles(std::int64_t rows, std::int64_t columns, const F& f) {
  with_count<2>(rows > 1 ? 2 : 1, [&](auto of_rows) { with_count<2>(columns > 1 ? 2 : 1, [&](auto of_columns) { f(of_rows, of_columns); }); });
}

// Computes c = a b for up to 32 rows. c has memory for 16 or 32 rows. The last sums are stored in c only by the next product or by sums.finish(). b is loaded
// without being stored in the first-level cache.
inline void multiply_double_strip(TileSums& sums, const Product<float, Bf16Pair>& product, int rows, int vectors) {
  for (int i = 0; i < rows && product.depth == 0; ++i) {
    for (int j = 0; j < vectors; ++j) store_vector<float>(Vector<float>{}, product.c + i * product.c_stride + j * kLanes<float>);
  }
  if (product.depth == 0) return sums.finish();
  for (int j = 0; j < vectors; j += 2) {
    with_tiles(rows / 17 + 1, vectors - j, [&](auto r, auto c) {
      sums.begin(product.c + j * 16, product.c_stride, 16 * product.c_stride, 16);
      for (std::int64_t k = 0; k < product.depth; k += kTermBlock)
        sums.add<r(), c(), false>(product.a + k, product.a_stride, 16 * product.a_stride, product.b + k * product.b_stride + j * 16, product.b_stride, 16);
    });
  }
}

// Does the work of multiply() (cpu/tile.h) for at most 32 rows if a is not transposed.
inline void multiply_double_strip_and_store(TileSums& sums, const Product<float, Bf16Pair>& product, int rows, int vectors) {
  constexpr std::int64_t kStride = kTileVectors * kLanes<float>;
  alignas(64) float tiles[2 * kRowBlock * kStride];
  for (int done = 0; done < vectors; done += kTileVectors) {
    const int here = vectors - done < kTileVectors ? vectors - done : kTileVectors;
    const std::int64_t column = std::int64_t{done} * kLanes<float>;
    multiply_double_strip(sums, {.depth = product.depth, .a = product.a, .a_stride = product.a_stride, .b = product.b + column, .b_stride = product.b_stride, .c = tiles, .c_stride = kStride}, rows, here);
    sums.finish();
    with_count<kTileVectors>(here, [&](auto count) { store_sums<count()>(product, tiles, 0, rows, column); });
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
