// The instruction set amx_bf16: AVX512-BF16, and AMX, whose instructions multiply whole tiles of bfloat16 pairs.
#pragma once

#include "cpu/isa/avx512_bf16_pairs.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr bool kHasAmx = true;

// The eight tile registers of this thread, each with 16 rows of 64 bytes. They are enabled only during the lifetime of this object, because a task switch must
// save 8 KiB more for a thread that uses tiles. The code uses assembly instead of intrinsics: the intrinsics of GCC 12 do not tell the compiler that a load reads
// memory, and they accept only literals as numbers of registers.
class AmxTiles {
 public:
  AmxTiles() {
    struct {  // the configuration of Intel SDM volume 1, section 18.3: palette 1, all registers in their full size
      std::uint8_t palette = 1, first_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const configuration;
    static_assert(sizeof configuration == 64);
    asm volatile("ldtilecfg %0" ::"m"(configuration));
  }
  ~AmxTiles() { asm volatile("tilerelease"); }
  AmxTiles(const AmxTiles&) = delete;

  template <int kTile>
  POLYHEAD_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  // load() and load_once() load a tile whose rows are `stride` bytes apart. load_once() does not store the tile in the first-level cache, so that data that is
  // read several times can stay there.
  template <int kTile>
  POLYHEAD_INLINE void load_once(const void* from, std::int64_t stride) {
    asm volatile("tileloaddt1 (%1,%2), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride) : "memory");
  }
  template <int kTile>
  POLYHEAD_INLINE void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%1,%2), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride) : "memory");
  }
  template <int kTile>
  POLYHEAD_INLINE void store(void* to, std::int64_t stride) const {
    asm volatile("tilestored %%tmm%c0, (%1,%2)" ::"i"(kTile), "r"(to), "r"(stride) : "memory");
  }
  // Adds to each sums[row, column] the products of the 16 pairs in row `row` of a with the 16 pairs in column `column` of b.
  template <int kSums, int kA, int kB>
  POLYHEAD_INLINE void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kB));
  }
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
