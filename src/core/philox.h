// Philox 4x32-10, a random number generator whose result is a function of a counter (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1,
// 2, 3").
#pragma once

#include <array>
#include <cstdint>

namespace polyhead {

using PhiloxBlock = std::array<std::uint32_t, 4>;

PhiloxBlock philox4x32(PhiloxBlock counter, std::array<std::uint32_t, 2> key);

// Returns a uniform number in [0,1), a multiple of 2^-53, from two 32-bit words of a PhiloxBlock.
inline double uniform_double(std::uint32_t high, std::uint32_t low) {
  return static_cast<double>((std::uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

// Decides for every sequence b, head n, query t and key s whether dropout keeps the attention weight. Four neighbouring keys share a PhiloxBlock with the
// counter (s / 4, t, n, b); key s uses its word s % 4. So a kernel draws the bits of four or sixteen keys at a time.
class DropoutBits {
 public:
  DropoutBits(double p, std::uint64_t seed);

  // Writes keep[i] = 1 if dropout keeps the attention weight of key first + i, else 0.
  void row(std::int64_t b, std::int64_t n, std::int64_t t, std::int64_t first, std::int64_t count, std::uint8_t* keep) const;

 private:
  std::uint64_t threshold_;  // p * 2^32; dropout keeps an entry if its 32-bit word is at least threshold_
  std::array<std::uint32_t, 2> key_;
};

// The factor 1/(1 - p) by which kept attention weights are multiplied. For p = 1 no weight is kept, and the factor is 0.
inline double dropout_scale(double p) { return p < 1 ? 1 / (1 - p) : 0; }

}  // namespace polyhead
