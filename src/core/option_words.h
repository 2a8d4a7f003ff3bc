// The words of options in files, messages, the program and Python: one list for each enum, in the order of its values.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "polyhead/empty_rows.h"

namespace polyhead::inline internal {

inline constexpr std::array<std::string_view, 3> kEmptyRowsWords{"zero", "uniform", "unmasked"};

constexpr std::string_view word_of(EmptyRows rule) { return kEmptyRowsWords[static_cast<std::size_t>(rule)]; }
static_assert(word_of(EmptyRows::zero) == "zero" && word_of(EmptyRows::uniform) == "uniform" && word_of(EmptyRows::unmasked) == "unmasked");

}  // namespace polyhead::inline internal
