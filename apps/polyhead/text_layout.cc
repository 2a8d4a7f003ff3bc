#include "text_layout.h"

#include <utf8proc.h>

#include <algorithm>

namespace polyhead::app {
namespace {

// Calls f(code point, bytes of the code point) for each code point; the code point is -1 for a byte that is not valid UTF-8.
template <class F>
void for_each_code_point(std::string_view text, F&& f) {
  for (std::size_t i = 0; i < text.size();) {
    utf8proc_int32_t point = -1;
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + i;
    const auto length = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - i), &point);
    const std::size_t used = length > 0 ? static_cast<std::size_t>(length) : 1;
    f(length > 0 ? point : -1, text.substr(i, used));
    i += used;
  }
}

// True for bidirectional embeddings, overrides and isolates: they reorder the text that follows them on the line.
bool reorders(utf8proc_int32_t point) { return (point >= 0x202A && point <= 0x202E) || (point >= 0x2066 && point <= 0x2069); }

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  for_each_code_point(text, [&](utf8proc_int32_t point, std::string_view bytes) {
    const auto category = utf8proc_category(std::max(point, 0));
    const bool bad = point < 0 || category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_ZL ||
                     category == UTF8PROC_CATEGORY_ZP || reorders(point);
    result += bad ? std::string_view("\uFFFD") : bytes;
  });
  return result;
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> result;
  utf8proc_int32_t previous = 0, state = 0;
  for_each_code_point(text, [&](utf8proc_int32_t point, std::string_view bytes) {
    if (result.empty() || utf8proc_grapheme_break_stateful(previous, point, &state)) {
      result.emplace_back(bytes);
    } else {
      result.back() += bytes;
    }
    previous = point;
  });
  return result;
}

std::size_t columns(std::string_view text) {
  std::size_t total = 0;
  for (const std::string& character : characters(text)) {
    int widest = 0;  // an emoji of several code points is as wide as its widest one
    for_each_code_point(
        character, [&](utf8proc_int32_t point, std::string_view) { widest = std::max(widest, point < 0 ? 1 : utf8proc_charwidth(point)); });
    total += static_cast<std::size_t>(widest);
  }
  return total;
}

std::string clip(std::string_view text, std::size_t width) {
  if (columns(text) <= width) return std::string(text);
  if (width == 0) return {};
  std::string result;
  std::size_t used = 1;  // starts at 1: the ellipsis takes one column
  for (const std::string& character : characters(text)) {
    used += columns(character);
    if (used > width) break;
    result += character;
  }
  return result + "…";
}

std::string clip_words(std::string_view text, std::size_t width) {
  const std::string cut = clip(text, width);
  const std::size_t space = cut == text ? std::string::npos : cut.find_last_of(' ');
  return space == std::string::npos ? cut : trimmed(cut.substr(0, space)) + " …";
}

std::string pad_right(std::string_view text, std::size_t width) {
  const std::size_t used = columns(text);
  return std::string(text) + std::string(width > used ? width - used : 0, ' ');
}

std::string pad_left(std::string_view text, std::size_t width) {
  const std::size_t used = columns(text);
  return std::string(width > used ? width - used : 0, ' ') + std::string(text);
}

std::string trimmed(std::string_view text) { return std::string(text.substr(0, text.find_last_not_of(' ') + 1)); }

std::vector<std::string> aligned(const std::vector<std::vector<std::string>>& rows, std::size_t right) {
  std::vector<std::size_t> widths(rows.empty() ? 0 : rows[0].size());
  for (const std::vector<std::string>& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns(row[i]));
  std::vector<std::string> lines;
  for (const std::vector<std::string>& row : rows) {
    std::string& line = lines.emplace_back();
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += i == right ? pad_left(row[i], widths[i]) : i + 1 < row.size() ? pad_right(row[i], widths[i]) : row[i];
    }
  }
  return lines;
}

std::string wrap(std::string_view text, std::size_t width, std::size_t indent) {
  std::string result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t leading = std::min(line.find_first_not_of(' '), line.size());  // continued lines keep the first line's indent
    const std::string margin(indent + leading, ' ');
    line.remove_prefix(leading);
    std::size_t used = 0;
    while (!line.empty()) {
      const std::size_t space = std::min(line.find(' '), line.size());
      const std::string_view word = line.substr(0, space);
      line.remove_prefix(std::min(space + 1, line.size()));
      const std::size_t length = columns(word);
      if (used > 0 && margin.size() + used + 1 + length > width) {
        result += '\n';
        used = 0;
      }
      result += used > 0 ? std::string(" ") : margin;
      result += word;
      used += (used > 0 ? 1 : 0) + length;
    }
    result += '\n';
  }
  return result;
}

std::string hang(std::string_view head, std::string_view text, std::size_t start, std::size_t width) {
  const std::string lines = wrap(text, width, start);
  if (lines.empty() || columns(head) > start) return std::string(head) + "\n" + lines;
  return pad_right(head, start) + lines.substr(std::min(start, lines.size() - 1));
}

}  // namespace polyhead::app
