#include "models/tokenizer/precompiled.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "core/text.h"
#include "io/json.h"
#include "models/tokenizer/grapheme.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

std::string decode_base64(std::string_view text, std::string_view where) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<std::int8_t, 256> values;
  values.fill(-1);
  for (std::size_t i = 0; i < kDigits.size(); ++i) values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::int8_t>(i);
  if (text.size() % 4 != 0) fail(ErrorCode::format, where, " has ", text.size(), " characters of base64; they come in fours");
  std::size_t digits = text.size();
  while (digits > 0 && text.size() - digits < 2 && text[digits - 1] == '=') --digits;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    const std::int8_t value = values[static_cast<unsigned char>(text[i])];
    if (value < 0) fail(ErrorCode::format, where, " has a character at ", i, " that is not base64");
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    // Four digits of base64 hold three bytes: each digit except the first completes a byte.
    if (i % 4 != 0) bytes.push_back(static_cast<char>(static_cast<unsigned char>(bits >> (6 - 2 * (i % 4)))));
  }
  return bytes;
}

std::uint32_t little_endian(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

// Units of a double array. Bits 0-7: label; bit 8: a key ends here; bit 9: the offset is multiplied by 256; bits 10-31: offset. In a leaf, bits 0-30 are the
// value.
bool ends_key(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t label(std::uint32_t unit) { return unit & (std::uint32_t{1} << 31 | 0xFF); }
std::size_t offset(std::uint32_t unit) { return std::size_t{unit >> 10} << ((unit & std::uint32_t{1} << 9) >> 6); }
std::size_t value(std::uint32_t unit) { return unit & ~(std::uint32_t{1} << 31); }

// Appends the replacement of `old_characters` characters. If the replacement has more characters, the additional ones count as inserted; if it has fewer, the
// remaining old characters are dropped after the last character of the replacement.
void append_replacement(std::vector<Change>& changes, std::size_t old_characters, std::string_view replacement) {
  std::size_t characters = 0;
  for (std::size_t at = 0; at < replacement.size();) {
    const auto [code, last] = char_at(replacement, at);
    changes.push_back({code, characters >= old_characters});
    ++characters;
    at = last;
  }
  if (characters < old_characters && !changes.empty()) changes.back().change -= static_cast<std::int64_t>(old_characters - characters);
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
}

}  // namespace

CharsMap::CharsMap(std::string_view base64, std::string_view where) {
  const std::string bytes = decode_base64(base64, where);
  if (bytes.size() < 4) fail(ErrorCode::format, where, " has ", bytes.size(), " bytes; a trie and its size are needed");
  const std::size_t size = little_endian(bytes, 0);
  if (size % 4 != 0 || size == 0 || size > bytes.size() - 4)
    fail(ErrorCode::format, where, " has a trie of ", size, " bytes; it must be a multiple of 4 and at most the ", bytes.size() - 4, " bytes that follow");
  for (std::size_t at = 4; at < 4 + size; at += 4) units_.push_back(little_endian(bytes, at));
  replacements_ = bytes.substr(4 + size);
  if (!io::is_utf8(replacements_)) fail(ErrorCode::format, where, " has replacements that are not UTF-8");
}

std::optional<std::string_view> CharsMap::find(std::string_view text) const {
  std::size_t place = offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    place ^= byte;
    if (place >= units_.size() || label(units_[place]) != byte) return std::nullopt;
    const std::uint32_t unit = units_[place];
    place ^= offset(unit);
    if (!ends_key(unit)) continue;
    const std::size_t first = place < units_.size() ? value(units_[place]) : replacements_.size() + 1;
    const auto middle = [&](std::size_t at) { return (static_cast<unsigned char>(replacements_[at]) & 0xC0) == 0x80; };
    if (first > replacements_.size() || (first < replacements_.size() && middle(first)))
      fail(ErrorCode::format, "tokenizer: the charsmap leads to byte ", first, " of its ", replacements_.size(), " bytes of replacements, where none begins");
    return std::string_view(replacements_).substr(first, std::min(replacements_.find('\0', first), replacements_.size()) - first);
  }
  return std::nullopt;
}

AlignedText CharsMap::apply(AlignedView text, std::size_t limit) const {
  std::vector<Change> changes;
  changes.reserve(text.bytes.size());
  for (std::size_t at = 0; at < text.bytes.size() && changes.size() <= limit;) {
    const std::size_t end = cluster_end(text.bytes, at);
    const std::string_view cluster = text.bytes.substr(at, end - at);
    const auto whole = cluster.size() < 6 ? find(cluster) : std::nullopt;
    if (whole) {
      append_replacement(changes, characters(cluster), *whole);
      at = end;
    }
    while (at < end) {
      const auto [code, last] = char_at(text.bytes, at);
      if (const auto one = find(text.bytes.substr(at, last - at)))
        append_replacement(changes, 1, *one);
      else
        changes.push_back({code, 0});
      at = last;
    }
  }
  return apply_changes(text, changes);
}

}  // namespace polyhead::models
