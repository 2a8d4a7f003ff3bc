#include "training/figures.h"

#include <array>
#include <charconv>

namespace polyhead::training {

std::string fixed(double value, int digits) {
  std::array<char, 400> text{};  // the longest double has 309 digits before the point
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits);
  return {text.data(), end};
}

}  // namespace polyhead::training
