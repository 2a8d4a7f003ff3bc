// Numbers as text, independent of the locale.
#pragma once

#include <cstdint>
#include <string>

#include "training/figures.h"

namespace polyhead::app {

using training::counted;
using training::fixed;

std::string byte_size(std::uint64_t bytes);  // returns a size such as "384 B", "1.5 KB" or "90.9 MB"; 1 KB is 1000 bytes

}  // namespace polyhead::app
