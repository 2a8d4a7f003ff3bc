// Words on a terminal: how many columns they take, and how to make them fit.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::app {

// Safe to print: control characters (a terminal would obey them), line ends and bytes that are not UTF-8 become U+FFFD.
std::string printable(std::string_view text);

// User-perceived characters (grapheme clusters, Unicode UAX 29) of printable text.
std::vector<std::string> characters(std::string_view text);

// Columns on a terminal: 2 for East Asian wide characters, 0 for combining marks.
std::size_t columns(std::string_view text);

std::string clip(std::string_view text, std::size_t width);       // at most `width` columns; "…" stands for what is left out
std::string pad_right(std::string_view text, std::size_t width);  // at least `width` columns
std::string pad_left(std::string_view text, std::size_t width);
inline std::string fit(std::string_view text, std::size_t width) { return pad_right(clip(text, width), width); }

// Lines of at most `width` columns, broken at spaces, each begun with `indent` spaces; a word that is longer has a line of its own.
std::string wrap(std::string_view text, std::size_t width, std::size_t indent = 0);

}  // namespace polyhead::app
