// Text in terminal columns: how wide it is, and how to clip, pad and wrap it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::app {

// Makes text safe to print on one line: control characters, line ends, characters that reorder text and bytes that are not valid UTF-8
// become U+FFFD.
std::string printable(std::string_view text);

// User-perceived characters (grapheme clusters, Unicode UAX 29) of printable text.
std::vector<std::string> characters(std::string_view text);

// Columns on a terminal: 2 for East Asian wide characters, 0 for combining marks.
std::size_t columns(std::string_view text);

std::string clip(std::string_view text, std::size_t width);       // shortens text to `width` columns; shortened text ends in "…"
std::string clip_words(std::string_view text, std::size_t width);  // the same, but cuts between words if the text has spaces
std::string pad_right(std::string_view text, std::size_t width);  // adds spaces up to `width` columns
std::string pad_left(std::string_view text, std::size_t width);
std::string trimmed(std::string_view text);  // removes the spaces at the end of the text
inline std::string fit(std::string_view text, std::size_t width) { return pad_right(clip(text, width), width); }

// A table with one line for each row of cells, and two spaces between columns. Cells of column `right` are aligned at their right ends.
std::vector<std::string> aligned(const std::vector<std::vector<std::string>>& rows, std::size_t right = SIZE_MAX);

// Breaks lines at spaces to at most `width` columns, each with `indent` spaces in front. A longer word gets its own line.
std::string wrap(std::string_view text, std::size_t width, std::size_t indent = 0);

// Text with a hanging indent: `head`, padded to `start` columns, and then `text`, whose continued lines are indented by `start`. The head is alone on its line
// if it is wider than `start` or if `text` is empty.
std::string hang(std::string_view head, std::string_view text, std::size_t start, std::size_t width);

}  // namespace polyhead::app
