#include "format.h"

#include <array>
#include <string_view>

namespace polyhead::app {

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
