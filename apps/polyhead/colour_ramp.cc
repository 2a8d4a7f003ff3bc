#include "colour_ramp.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/text.h"

namespace polyhead::app {
namespace {

struct Rgb {
  float r, g, b;
};

// Lightness rises evenly from dark blue to pale yellow, so that readers with colour blindness can order two colours too.
constexpr std::array<Rgb, 5> kRamp{{{18, 22, 52}, {44, 70, 138}, {38, 134, 150}, {118, 194, 120}, {250, 236, 130}}};

Rgb colour_at(float value) {
  const float place = std::clamp(value, 0.F, 1.F) * (kRamp.size() - 1);
  const auto below = std::min(static_cast<std::size_t>(place), kRamp.size() - 2);
  const float t = place - static_cast<float>(below);
  const Rgb a = kRamp[below], b = kRamp[below + 1];
  return {a.r + t * (b.r - a.r), a.g + t * (b.g - a.g), a.b + t * (b.b - a.b)};
}

// The 6x6x6 cube of the 256-colour palette has the levels 0, 95, 135, 175, 215, 255.
int cube_level(float value) { return value < 48 ? 0 : value < 115 ? 1 : std::min(5, static_cast<int>((value - 35) / 40)); }

std::string code(Rgb c, Colour colour) {
  if (colour == Colour::indexed256) return cat("5;", 16 + 36 * cube_level(c.r) + 6 * cube_level(c.g) + cube_level(c.b));
  return cat("2;", std::lround(c.r), ";", std::lround(c.g), ";", std::lround(c.b));
}

}  // namespace

std::string_view shade(float value) {
  if (std::isnan(value)) return "?";
  std::string_view block = kShades[0].block;
  for (const Shade& row : kShades)
    if (value >= row.from) block = row.block;
  return block;
}

std::string painted(std::string_view text, float value, Colour colour) {
  if (colour == Colour::none) return std::string(text);
  if (std::isnan(value)) return cat("\x1b[41;97m", text, "\x1b[0m");
  const Rgb c = colour_at(value);
  const bool dark = 0.2126F * c.r + 0.7152F * c.g + 0.0722F * c.b < 120;  // the brightness (luma) that ITU-R BT.709 defines
  return cat("\x1b[48;", code(c, colour), "m\x1b[", dark ? "97" : "30", "m", text, "\x1b[0m");
}

}  // namespace polyhead::app
