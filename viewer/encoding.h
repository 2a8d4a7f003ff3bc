// Attention weights as codes of 16 or 8 bits, or as float32, in base64, for JSON. script/data.js decodes them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace polyhead::viewer {

// All weights of a page have the same encoding. The page names the encoding, and shows only as many digits of a weight as the encoding preserves.
enum class Encoding : std::uint8_t {
  linear16,      // steps of 1/65533 on [0, 1]: error at most 7.7e-6
  logarithmic8,  // steps of a factor 2^(1/14): error at most 2.6 % of the attention weight; below 3.7e-6 it is stored as 0
  float32,       // exact; used by live pages, which receive attention weights and store none
};

inline constexpr std::int64_t kMaxLinear16 = std::int64_t{1} << 21;  // a page with more attention weights (5.6 MB of base64) uses 8 bits

Encoding choose_encoding(std::int64_t count);  // for a page of `count` attention weights
std::string_view name_of(Encoding encoding);   // the name in the page's data

// linear16:      code = 1 + round(65533 w);     w = (code - 1) / 65533;                            65535 is NaN.
// logarithmic8:  code = 254 + round(14 log2 w); w = 2^((code - 254)/14); 1 rounds to 0;           255 is NaN.
// Code 0 means that the weight is exactly 0, as for a masked key; the page marks such a weight differently from a small one. w is the attention weight: NaN, or
// clamped to [0, 1].
std::uint16_t linear16(float weight);
std::uint8_t logarithmic8(float weight);

std::string base64(std::span<const std::uint8_t> bytes);  // RFC 4648, section 4
std::string base64(std::span<const float> numbers);       // the same of the numbers in memory, four bytes each, low byte first

// The codes in base64; codes of 16 bits are stored low byte first.
std::string encode(std::span<const float> weights, Encoding encoding);

}  // namespace polyhead::viewer
