// Joins the parts of a message.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace polyhead::python {

inline std::string as_text(std::string_view part) { return std::string(part); }
inline std::string as_text(std::integral auto number) { return std::to_string(number); }

// text("k has ", rank, " dimensions")
template <class... Parts>
std::string text(const Parts&... parts) {
  return (std::string() + ... + as_text(parts));
}

}  // namespace polyhead::python
