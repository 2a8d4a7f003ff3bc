// Reads the lines of a data file and reports bad lines by their number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::training {

struct BadLine {
  std::int64_t line;  // line number, counted from 1
  std::string reason;
};

// Rows of a file, and the lines that were skipped.
template <class Row>
struct Data {
  std::vector<Row> rows;
  std::vector<BadLine> bad;
};

inline constexpr std::size_t kLongestLine = std::size_t{1} << 20;  // in bytes

// Calls row(line) for each line; row() returns what is wrong with the line, "" if nothing is. Lines end with \n or \r\n; the last line may end without. A byte
// order mark and blank lines are dropped. Lines of more than kLongestLine bytes, with a NUL byte or with bytes that are not UTF-8 are bad lines, and row() is
// not called for them. Error: the file cannot be read (ErrorCode::io), or no line is good (ErrorCode::format).
std::vector<BadLine> read_lines(const std::filesystem::path& path, const std::function<std::string(std::string_view line)>& row);

// Returns a text such as "3 of 120 lines are skipped" with the first few reasons, on one line; "" if no line is bad.
std::string describe(const std::vector<BadLine>& bad, std::int64_t good, std::size_t most = 5);

// Returns the parts between separators: split("a\t\tb", '\t') has three parts.
std::vector<std::string_view> split(std::string_view text, char separator);
// The parts between runs of white space, as defined by Python's str.split(): Unicode white space and the separators U+001C to U+001F.
std::vector<std::string_view> split_at_white_space(std::string_view text);

// Decodes a character of well-formed UTF-8 and moves `text` past it. A byte that is not well formed is returned unchanged.
char32_t take_character(std::string_view& text);
bool is_white_space(char32_t code);

}  // namespace polyhead::training
