#include "core/philox.h"

#include <cmath>

namespace polyhead {

PhiloxBlock philox4x32(PhiloxBlock c, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c[0], b = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<std::uint32_t>(a)};
    // After each round the two key words grow by these constants: the bits of the golden ratio and of sqrt(3) - 1.
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return c;
}

DropoutBits::DropoutBits(double p, std::uint64_t seed)
    : threshold_(static_cast<std::uint64_t>(std::llround(p * 0x1p32))),
      key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)} {}

void DropoutBits::row(std::int64_t b, std::int64_t n, std::int64_t t, std::int64_t first, std::int64_t count, std::uint8_t* keep) const {
  const auto word = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
  PhiloxBlock block{};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t s = first + i;
    if (i == 0 || s % 4 == 0) block = philox4x32({word(s / 4), word(t), word(n), word(b)}, key_);
    keep[i] = block[static_cast<std::size_t>(s % 4)] >= threshold_;
  }
}

}  // namespace polyhead
