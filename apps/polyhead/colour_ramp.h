// From a part of the largest weight, 0 to 1, to what a terminal shows.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "terminal.h"

namespace polyhead::app {

struct Shade {
  float from;  // the smallest part that it stands for
  std::string_view block;
};

inline constexpr std::array<Shade, 5> kShades{{{0.F, " "}, {0.05F, "░"}, {0.25F, "▒"}, {0.5F, "▓"}, {0.75F, "█"}}};

std::string_view shade(float part);  // "?" for NaN

// `text` on a background of the part's colour, in black or white, whichever reads better.
std::string painted(std::string_view text, float part, Colour colour);

}  // namespace polyhead::app
