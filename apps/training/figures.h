// Numbers as text, independent of the locale.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include "core/text.h"

namespace polyhead::training {

std::string fixed(double value, int digits);  // returns a text such as "0.25", "nan" or "inf"

// Returns a text such as "1 tensor" or "3 tensors".
std::string counted(std::integral auto count, std::string_view noun) { return cat(count, " ", noun, count == 1 ? "" : "s"); }

}  // namespace polyhead::training
