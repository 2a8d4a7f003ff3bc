#include "training/lines.h"

#include <cstring>
#include <cerrno>
#include <utf8proc.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "core/text.h"

namespace polyhead::training {
namespace {

utf8proc_ssize_t decode(std::string_view text, utf8proc_int32_t& code) {
  return utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &code);
}

std::string unreadable(std::string_view line) {
  if (line.size() > kLongestLine) return cat("the line has more than ", kLongestLine, " bytes");
  if (line.find('\0') != line.npos) return "the line has a NUL byte";
  for (std::size_t i = 0; i < line.size();) {
    utf8proc_int32_t code = 0;
    const utf8proc_ssize_t length = decode(line.substr(i), code);
    if (length <= 0) return cat("byte ", i + 1, " is not UTF-8");
    i += static_cast<std::size_t>(length);
  }
  return "";
}

}  // namespace

char32_t take_character(std::string_view& text) {
  utf8proc_int32_t code = 0;
  utf8proc_ssize_t length = decode(text, code);
  if (length <= 0) code = static_cast<unsigned char>(text[0]), length = 1;
  text.remove_prefix(static_cast<std::size_t>(length));
  return static_cast<char32_t>(code);
}

bool is_white_space(char32_t code) {
  if ((code >= 0x9 && code <= 0xD) || (code >= 0x1C && code <= 0x1F) || code == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; end != text.npos; text.remove_prefix(end == text.npos ? 0 : end + 1)) {
    end = text.find(separator);
    parts.push_back(text.substr(0, end));
  }
  return parts;
}

std::vector<std::string_view> split_at_white_space(std::string_view text) {
  std::vector<std::string_view> parts;
  std::string_view start = text;
  const auto close = [&](std::string_view end) {
    if (end.data() > start.data()) parts.emplace_back(start.data(), static_cast<std::size_t>(end.data() - start.data()));
  };
  while (!text.empty()) {
    const std::string_view at = text;
    if (!is_white_space(take_character(text))) continue;
    close(at);
    start = text;
  }
  close(text);
  return parts;
}

std::vector<BadLine> read_lines(const std::filesystem::path& path, const std::function<std::string(std::string_view line)>& row) {
  if (std::filesystem::is_directory(path)) fail(ErrorCode::io, path.string(), " is a folder; data is read from a file");
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::io, "cannot open '", path.string(), "': ", std::strerror(errno));
  std::vector<BadLine> bad;
  std::string line, buffer(std::size_t{1} << 16, '\0');
  std::int64_t number = 0, good = 0;
  const auto finish = [&] {
    ++number;
    if (number == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
    if (line.ends_with('\r')) line.pop_back();
    if (!split_at_white_space(line).empty()) {
      std::string wrong = unreadable(line);
      if (wrong.empty()) wrong = row(line);
      wrong.empty() ? void(++good) : bad.push_back({number, std::move(wrong)});
    }
    line.clear();
  };
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())), file.gcount() > 0) {
    std::string_view rest(buffer.data(), static_cast<std::size_t>(file.gcount()));
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      // A line of more than kLongestLine bytes is a bad line, so do not store the rest of the line.
      line += rest.substr(0, std::min(end, kLongestLine + 2 - std::min(line.size(), kLongestLine + 2)));
      if (end < rest.size()) finish();
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  if (file.bad()) fail(ErrorCode::io, path.string(), " cannot be read to its end");
  if (!line.empty()) finish();
  if (good == 0)
    fail(ErrorCode::format, path.string(), " has no usable line among ", number,
         bad.empty() ? std::string() : cat("; line ", bad.front().line, ": ", bad.front().reason));
  return bad;
}

std::string describe(const std::vector<BadLine>& bad, std::int64_t good, std::size_t most) {
  if (bad.empty()) return "";
  const auto count = static_cast<std::int64_t>(bad.size());
  std::string text = cat(count, " of ", count + good, count == 1 ? " lines is skipped" : " lines are skipped");
  std::string_view before = ": ";
  for (const BadLine& line : std::span(bad).first(std::min(most, bad.size()))) text += cat(std::exchange(before, "; "), "line ", line.line, ": ", line.reason);
  if (bad.size() > most) text += cat("; and ", bad.size() - most, " more");
  return text;
}

}  // namespace polyhead::training
