// Builds messages from parts. iostreams are not used, because their numbers depend on the process' locale.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

#include "polyhead/error.h"
#include "polyhead/tensor_view.h"

namespace polyhead {

inline void append(std::string& text, std::string_view part) { text += part; }
inline void append(std::string& text, const Dims& dims) { text += to_string(dims); }
inline void append(std::string& text, DType dtype) { text += info(dtype).name; }
inline void append(std::string& text, char c) { text += c; }
template <class T>
  requires((std::integral<T> || std::floating_point<T>) && !std::same_as<T, char>)
void append(std::string& text, T number) {
  if constexpr (std::same_as<T, bool>) {
    text += number ? "true" : "false";
  } else {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
    text.append(digits, end);
  }
}

// cat("k is ", shape, "; H = ", 64)
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string text;
  (append(text, parts), ...);
  return text;
}

template <class... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, cat(parts...));
}

template <class... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) fail(ErrorCode::invalid_argument, parts...);
}

}  // namespace polyhead
