#include <algorithm>
#include <charconv>

#include "core/lines.h"
#include "core/text.h"
#include "io/file_bytes.h"
#include "io/json.h"
#include "models/byte_pairs.h"
#include "polyhead/io/atomic_file.h"

// merges.txt has a line for the version, a line for the case, one line for each special token, and one line for each merge in the order of training. Ids follow
// from the order of the lines.
namespace polyhead::models {
namespace {

constexpr std::string_view kFile = "merges.txt", kFirstLine = "polyhead byte-pair tokenizer 1", kMark = "▁", kSpace = "␣", kSpecial = "special ";
constexpr std::size_t kMostBytes = std::size_t{1} << 25;
constexpr std::size_t kMostTokens = std::size_t{1} << 20;

void append_escaped(std::string& text, std::string_view bytes) {
  static constexpr std::string_view kDigits = "0123456789ABCDEF";
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += "\\x";
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
}

class Lines {
 public:
  Lines(std::string_view text, std::string_view name) : text_(text), name_(name) {}
  // Reads the next line. No piece contains \n or \r, because the file writes these bytes as escapes.
  bool next(std::string_view& line) {
    const auto taken = take_line(text_);
    if (taken) line = *taken, ++number_;
    return taken.has_value();
  }
  template <class... Words>
  [[noreturn]] void refuse(const Words&... words) const {
    fail(ErrorCode::format, name_, ": line ", number_, " ", words...);
  }
  std::string parse(std::string_view visible) const {
    try {
      return parse_piece(visible);
    } catch (const Error& error) {
      refuse(error.what());
    }
  }

 private:
  std::string_view text_, name_;
  std::int64_t number_ = 0;
};

}  // namespace

std::string visible_piece(std::string_view bytes) {
  std::string text;
  if (bytes.starts_with(kWordMark)) {
    text = kMark;
    bytes.remove_prefix(1);
  }
  for (const Char& c : decode_utf8(bytes).chars) {
    const std::string_view own = bytes.substr(c.span.first, c.span.last - c.span.first);
    const bool broken = c.code == 0xFFFD && own.size() == 1;
    if (c.code == ' ') text += kSpace;
    else if (broken || c.code == '\\' || is_white_space(c.code) || is_unassigned_or_control(c.code) || own == kMark || own == kSpace) append_escaped(text, own);
    else text += own;
  }
  return text;
}

std::string parse_piece(std::string_view visible) {
  std::string bytes;
  if (visible.starts_with(kMark)) {
    bytes = kWordMark;
    visible.remove_prefix(kMark.size());
  }
  while (!visible.empty()) {
    if (visible.starts_with(kSpace)) {
      bytes += ' ';
      visible.remove_prefix(kSpace.size());
    } else if (visible.front() == '\\') {
      unsigned value = 0;
      const bool long_enough = visible.size() >= 4 && visible[1] == 'x';
      if (!long_enough || std::from_chars(visible.data() + 2, visible.data() + 4, value, 16).ptr != visible.data() + 4 || value == 255)
        fail(ErrorCode::format, "has a \\ that is not \\x and two hexadecimal digits below FF");
      bytes += static_cast<char>(value);
      visible.remove_prefix(4);
    } else {
      bytes += visible.front();
      visible.remove_prefix(1);
    }
  }
  return bytes;
}

BytePairTokenizer parse_byte_pairs(std::string_view text, std::string_view name) {
  if (text.size() > kMostBytes) fail(ErrorCode::format, name, ": has ", text.size(), " bytes; at most ", kMostBytes, " are read");
  Lines lines(text, name);
  std::string_view line;
  if (!lines.next(line) || line != kFirstLine) fail(ErrorCode::format, name, ": line 1 is not '", kFirstLine, "'");
  if (!lines.next(line) || (line != "lowercase yes" && line != "lowercase no")) lines.refuse("is neither 'lowercase yes' nor 'lowercase no'");
  const bool lowercase = line == "lowercase yes";
  std::vector<std::string> special;
  bool more = lines.next(line);
  for (; more && line.starts_with(kSpecial); more = lines.next(line)) {
    special.push_back(lines.parse(line.substr(kSpecial.size())));
    if (special.back().empty() || !io::is_utf8(special.back()) || std::ranges::count(special, special.back()) > 1)
      lines.refuse("has a special token that is empty, not UTF-8, or repeated");
    if (special.size() > 1000) lines.refuse("is the 1001st special token; 1000 are read at most");
  }
  auto parts = std::make_shared<BytePairTokenizer::Parts>(lowercase, std::move(special));
  if (!more || line != "merges") lines.refuse("is neither a special token nor 'merges'");
  while (lines.next(line)) {
    const std::size_t space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos) lines.refuse("is not two pieces with a space between them");
    const auto id = [&](std::string_view visible) {
      const auto found = parts->ids.find(lines.parse(visible));
      if (found == parts->ids.end()) lines.refuse("merges '", visible.substr(0, 100), "', which no line before it makes");
      return found->second;
    };
    const IdPair pair{id(line.substr(0, space)), id(line.substr(space + 1))};
    if (parts->pieces[static_cast<std::size_t>(pair.second)].front() == kWordMark) lines.refuse("has the start of a word inside a piece");
    if (parts->merges.contains(BytePairs::pair_key(pair.first, pair.second))) lines.refuse("repeats a merge");
    if (parts->merges.size() == kMostTokens) lines.refuse("is one merge too many; ", kMostTokens, " are read at most");
    parts->add_merge(pair);
  }
  return BytePairTokenizer(std::move(parts));
}

void BytePairTokenizer::save(const std::filesystem::path& folder) const {
  std::string text(kFirstLine);
  text += parts_->lowercase ? "\nlowercase yes\n" : "\nlowercase no\n";
  for (const std::string& token : parts_->special_tokens) text += std::string(kSpecial) + visible_piece(token) + "\n";
  text += "merges\n";
  for (const auto& [first, second] : parts_->pairs) text += piece(first) + " " + piece(second) + "\n";
  io::write_file(folder / kFile, text);
}

BytePairTokenizer load_byte_pair_tokenizer(const std::filesystem::path& folder) {
  const io::FileBytes file = io::read_file(folder / kFile);
  return parse_byte_pairs(file.text(), (folder / kFile).string());
}

}  // namespace polyhead::models
