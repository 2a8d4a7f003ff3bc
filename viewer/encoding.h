// Attention weights as codes of 16 or 8 bits, or as float32, in base64, for JSON. script/data.js decodes them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace polyhead::viewer {

// All weights of a page have the same encoding. The page names the encoding, and shows only as many digits of a weight as the encoding preserves.
enum class Encoding : std::uint8_t {
  linear16,      // steps of 1/65533 on [0, 1]; the error of a weight is at most 7.7e-6
  logarithmic8,  // steps of a factor 2^(1/14): the error is at most 2.6 % of the weight; a weight below 3.7e-6 is stored as 0
  float32,       // exact; for live pages, which store no attention weights but receive them from the engine
};

// The largest number of attention weights that a page stores with 16 bits (5.6 MB of base64). A page with more stores 8 bits for each.
inline constexpr std::int64_t kMaxLinear16 = std::int64_t{1} << 21;

Encoding choose_encoding(std::int64_t count);  // returns the encoding of a page with `count` attention weights
std::string_view name_of(Encoding encoding);   // returns the name by which the page's data call the encoding

// linear16:      code = 1 + round(65533 w);     w = (code - 1) / 65533;                            65535 is NaN.
// logarithmic8:  code = 254 + round(14 log2 w); w = 2^((code - 254)/14); 1 rounds to 0;           255 is NaN.
// Code 0 means that the weight is exactly 0, as for a masked key; the page marks such a weight differently from a small one. w is the attention weight: NaN, or
// clamped to [0, 1].
std::uint16_t linear16(float weight);
std::uint8_t logarithmic8(float weight);

std::string base64(std::span<const std::uint8_t> bytes);  // encodes bytes as RFC 4648, section 4, defines
std::string base64(std::span<const float> numbers);       // encodes each number as its four bytes, low byte first

// Converts weights to codes and returns the codes in base64. Codes of 16 bits are written low byte first.
std::string encode(std::span<const float> weights, Encoding encoding);

}  // namespace polyhead::viewer
