// Weights in few bytes, as text that JSON can hold. script/data.js reads what is written here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "polyhead/viewer.h"

namespace polyhead::viewer {

std::string_view name_of(Encoding encoding);  // as the page's data names it

// linear16:      code = round(65534 w);         w = code / 65534;                      65535 is NaN.
// logarithmic8:  code = 254 + round(14 log2 w); w = 2^((code - 254)/14); 0 is 0;       255 is NaN.
// w in [0, 1] or NaN; slightly outside is clamped.
std::uint16_t linear16(float weight);
std::uint8_t logarithmic8(float weight);

// The codes of the weights, 16 bits low byte first, in base64 (RFC 4648, section 4).
std::string encode(std::span<const float> weights, Encoding encoding);

}  // namespace polyhead::viewer
