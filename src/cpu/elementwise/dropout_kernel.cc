// Computes the keep bits of a row of dropout with the vector code of attention's dropout.
#include "cpu/elementwise/kernels.h"
#include "cpu/sdpa/dropout.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

void keep_row(std::int64_t count, std::uint32_t row, std::uint64_t seed, std::int64_t below, std::uint8_t* keep) {
  const std::uint32_t rest[3] = {row, 0, 0}, words[2] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (std::int64_t i = 0; i < count; i += kPhiloxKeys) philox_bytes(static_cast<std::uint32_t>(i / 4), rest, words, below, keep + i);
}

}  // namespace

extern const DropoutKernels dropout_kernels;
constinit const DropoutKernels dropout_kernels = {keep_row, kPhiloxKeys};

}  // namespace polyhead::cpu::POLYHEAD_ISA
