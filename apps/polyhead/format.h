// Numbers as text, independent of the locale.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/text.h"

namespace polyhead::app {

std::string fixed(double value, int digits);                     // "0.25"; "nan", "inf"
std::string byte_size(std::uint64_t bytes);                      // "384 B", "1.5 KB", "90.9 MB": powers of 1000

// "1 tensor", "3 tensors"
std::string counted(std::integral auto count, std::string_view noun) { return cat(count, " ", noun, count == 1 ? "" : "s"); }

}  // namespace polyhead::app
