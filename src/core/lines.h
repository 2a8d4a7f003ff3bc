// Steps through the lines of a text.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>

namespace polyhead {

// Removes the first line from the text and returns it, without the \n or \r\n that ends it; nullopt if the text is empty. No other character ends a line,
// because published vocabularies contain the line separator U+2028.
inline std::optional<std::string_view> take_line(std::string_view& text) {
  if (text.empty()) return std::nullopt;
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  if (line.ends_with('\r')) line.remove_suffix(1);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

}  // namespace polyhead
