// Conversion of ASCII letters that does not depend on the locale.
#pragma once

namespace polyhead::inline internal {

// Returns ASCII letters in lower case and all other characters unchanged.
constexpr char lower_ascii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace polyhead::inline internal
