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

// Decides for every (b, n, t, s) whether dropout keeps the probability. Four neighbouring keys share a PhiloxBlock: its counter is
// (s / 4, t, n, b), and key s uses word s % 4, so that a kernel draws the bits of four or sixteen keys at a time.
class DropoutBits {
 public:
  DropoutBits(double p, std::uint64_t seed);

  // Writes keep[i] = 1 if dropout keeps the probability of key first + i, else 0.
  void row(std::int64_t b, std::int64_t n, std::int64_t t, std::int64_t first, std::int64_t count, std::uint8_t* keep) const;

 private:
  std::uint64_t threshold_;  // p * 2^32; dropout keeps an entry if its 32-bit word is at least threshold_
  std::array<std::uint32_t, 2> key_;
};

// The factor of the probabilities that dropout keeps: 1/(1 - p). For p = 1 none are kept, and the result is 0.
inline double dropout_scale(double p) { return p < 1 ? 1 / (1 - p) : 0; }

}  // namespace polyhead
