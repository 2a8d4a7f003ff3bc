// Letters without a locale.
#pragma once

namespace polyhead::inline internal {

// A letter of ASCII in lower case, anything else as it is.
constexpr char lower_ascii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace polyhead::inline internal
