// A terminal's colours and block characters for values from 0 to 1, which are attention weights divided by the largest one.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "terminal.h"

namespace polyhead::app {

struct Shade {
  float from;  // the smallest value for which this block character is shown
  std::string_view block;
};

inline constexpr std::array<Shade, 5> kShades{{{0.F, " "}, {0.05F, "░"}, {0.25F, "▒"}, {0.5F, "▓"}, {0.75F, "█"}}};

std::string_view shade(float value);  // the block character for a value; "?" for NaN

// `text` on a background of the value's colour, in black or white, whichever has more contrast.
std::string painted(std::string_view text, float value, Colour colour);

}  // namespace polyhead::app
