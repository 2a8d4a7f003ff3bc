#include "format.h"

#include <array>
#include <charconv>
#include <string_view>

namespace polyhead::app {

std::string fixed(double value, int digits) {
  std::array<char, 400> text{};  // the longest double has 309 digits before the point
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits);
  return {text.data(), end};
}

std::string byte_size(std::uint64_t bytes) {
  if (bytes < 1000) return cat(bytes, " B");
  constexpr std::array<std::string_view, 4> kUnits{"KB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  while (value >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return cat(fixed(value, 1), " ", kUnits[unit]);
}

}  // namespace polyhead::app
