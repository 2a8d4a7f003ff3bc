// Numbers as text, independent of the locale.
#pragma once

#include <cstdint>
#include <string>

#include "training/figures.h"

namespace polyhead::app {

using training::counted;
using training::fixed;

std::string byte_size(std::uint64_t bytes);  // "384 B", "1.5 KB", "90.9 MB": powers of 1000

}  // namespace polyhead::app
