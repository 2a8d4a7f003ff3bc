// Numbers as text, independent of the locale.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace polyhead::app {

std::string fixed(double value, int digits);                     // "0.25"; "nan", "inf"
std::string byte_size(std::uint64_t bytes);                      // "384 B", "1.5 KB", "90.9 MB": powers of 1000
std::string counted(std::int64_t count, std::string_view noun);  // "1 tensor", "3 tensors"

}  // namespace polyhead::app
