// The words that name the values of options in files, messages, the program and Python. There is one list for each enum, in the order of the enum's values.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "polyhead/empty_rows.h"

namespace polyhead::inline internal {

inline constexpr std::array<std::string_view, 3> kEmptyRowsWords{"zero", "uniform", "unmasked"};
// sdpa/normal_form.cc and nn/attention_config.cc, which know these enums, check the order of the words.
inline constexpr std::array<std::string_view, 2> kPrecisionWords{"exact", "native"};
inline constexpr std::array<std::string_view, 3> kPoolingWords{"mean", "sum", "largest"};
inline constexpr std::array<std::string_view, 3> kGlobalQueryWords{"off", "mean", "masked_mean"};

template <class Enum, std::size_t count>
constexpr std::string_view word_of(Enum value, const std::array<std::string_view, count>& words) {
  return words[static_cast<std::size_t>(value)];
}
constexpr std::string_view word_of(EmptyRows rule) { return word_of(rule, kEmptyRowsWords); }
static_assert(word_of(EmptyRows::zero) == "zero" && word_of(EmptyRows::uniform) == "uniform" && word_of(EmptyRows::unmasked) == "unmasked");

}  // namespace polyhead::inline internal
