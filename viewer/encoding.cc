#include "viewer/encoding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace polyhead::viewer {

std::string base64(std::span<const std::uint8_t> bytes) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text((bytes.size() + 2) / 3 * 4, '=');
  char* out = text.data();
  for (std::size_t i = 0; i < bytes.size(); i += 3, out += 4) {
    const std::size_t present = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = std::uint32_t{bytes[i]} << 16;
    if (present > 1) group |= std::uint32_t{bytes[i + 1]} << 8;
    if (present > 2) group |= bytes[i + 2];
    for (std::size_t j = 0; j <= present; ++j) out[j] = kDigits[group >> (18 - 6 * j) & 63];
  }
  return text;
}

std::string base64(std::span<const float> numbers) {
  std::vector<std::uint8_t> bytes(4 * numbers.size());
  std::uint8_t* out = bytes.data();
  for (const float number : numbers) {
    const auto bits = std::bit_cast<std::uint32_t>(number);
    for (int shift = 0; shift < 32; shift += 8) *out++ = static_cast<std::uint8_t>(bits >> shift & 255);
  }
  return base64(bytes);
}

Encoding choose_encoding(std::int64_t count) { return count <= kMaxLinear16 ? Encoding::linear16 : Encoding::logarithmic8; }

std::string_view name_of(Encoding encoding) { return encoding == Encoding::linear16 ? "linear16" : encoding == Encoding::logarithmic8 ? "logarithmic8" : "float32"; }

std::uint16_t linear16(float weight) {
  if (std::isnan(weight)) return 65535;
  if (weight == 0) return 0;
  return static_cast<std::uint16_t>(1 + std::lround(65533.0 * std::clamp(static_cast<double>(weight), 0.0, 1.0)));
}

std::uint8_t logarithmic8(float weight) {
  if (std::isnan(weight)) return 255;
  if (weight == 0) return 0;
  if (weight < 0) return 1;
  const double code = 254 + std::round(14 * std::log2(static_cast<double>(weight)));
  return static_cast<std::uint8_t>(std::clamp(code, 1.0, 254.0));
}

std::string encode(std::span<const float> weights, Encoding encoding) {
  if (encoding == Encoding::float32) return base64(weights);
  std::vector<std::uint8_t> bytes;
  bytes.reserve(2 * weights.size());
  for (const float weight : weights) {
    if (encoding == Encoding::logarithmic8) {
      bytes.push_back(logarithmic8(weight));
    } else {
      const std::uint16_t code = linear16(weight);
      bytes.push_back(static_cast<std::uint8_t>(code & 255));
      bytes.push_back(static_cast<std::uint8_t>(code >> 8));
    }
  }
  return base64(bytes);
}

}  // namespace polyhead::viewer
