#include "models/tokenizer/decoder.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "io/json.h"
#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/growth_limit.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
using Pieces = std::vector<std::string>;

std::string joined(const Pieces& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

void replace_all(std::string& text, std::string_view old, std::string_view replacement) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t at; (at = text.find(old, done)) != std::string::npos; done = at + old.size()) result.append(text, done, at - done).append(replacement);
  if (done > 0) text = result.append(text, done);
}

// Returns the length in bytes of the longest beginning of a well-formed UTF-8 sequence at `at`, and whether this is a whole sequence (Unicode 15, table 3-7).
std::pair<std::size_t, bool> sequence_at(std::string_view bytes, std::size_t at) {
  const auto byte = [&](std::size_t i) { return at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, true};
  const std::size_t length = lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
  if (length == 0) return {1, false};
  const unsigned least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80, greatest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < least || byte(1) > greatest) return {1, false};
  for (std::size_t i = 2; i < length; ++i)
    if (byte(i) < 0x80 || byte(i) > 0xBF) return {i, false};
  return {length, true};
}

// Replaces bytes that are not valid UTF-8 by U+FFFD: one for the bytes of each incomplete sequence, and one for each byte that begins no sequence.
std::string valid_utf8(std::string_view bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto [length, whole] = sequence_at(bytes, at);
    text += whole ? bytes.substr(at, length) : kReplacement;
    at += length;
  }
  return text;
}

Pieces run_step(const Pieces& pieces, const DecodeByteLevel&) {
  std::string bytes;
  for (const std::string& piece : pieces) {
    const std::size_t before = bytes.size();
    for (std::size_t at = 0; at < piece.size();) {
      const auto [code, last] = char_at(piece, at);
      const auto byte = character_byte(code);
      if (!byte) {
        // A piece that has a character outside of the alphabet, such as an added token, is copied as text.
        bytes.resize(before);
        bytes += piece;
        break;
      }
      bytes.push_back(static_cast<char>(*byte));
      at = last;
    }
  }
  return {valid_utf8(bytes)};
}

std::optional<char> fallback_byte(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  unsigned value = 0;
  // The `tokenizers` package reads "+5" as a number, so "<0x+5>" is a byte too.
  for (const char c : piece.substr(piece[3] == '+' ? 4 : 3, piece[3] == '+' ? 1 : 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(digit);
  }
  return static_cast<char>(static_cast<unsigned char>(value));
}

Pieces run_step(const Pieces& pieces, const DecodeByteFallback&) {
  Pieces result;
  std::string bytes;
  const auto end_bytes = [&] {
    if (io::is_utf8(bytes)) {
      if (!bytes.empty()) result.push_back(bytes);
    } else {
      result.insert(result.end(), bytes.size(), std::string(kReplacement));
    }
    bytes.clear();
  };
  for (const std::string& piece : pieces) {
    if (const auto byte = fallback_byte(piece)) {
      bytes.push_back(*byte);
      continue;
    }
    end_bytes();
    result.push_back(piece);
  }
  end_bytes();
  return result;
}

Pieces run_step(const Pieces& pieces, const FusePieces&) { return {joined(pieces)}; }

Pieces run_step(Pieces pieces, const DecodeMetaspace& step) {
  std::string mark;
  append_char(mark, step.replacement);
  for (std::size_t i = 0; i < pieces.size(); ++i) replace_all(pieces[i], mark, i == 0 && step.drop_first ? "" : " ");
  return pieces;
}

Pieces run_step(Pieces pieces, const DecodeWordPiece& step) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kCleanup{{{" .", "."},
                                                                                           {" ?", "?"},
                                                                                           {" !", "!"},
                                                                                           {" ,", ","},
                                                                                           {" ' ", "'"},
                                                                                           {" n't", "n't"},
                                                                                           {" 'm", "'m"},
                                                                                           {" do not", " don't"},
                                                                                           {" 's", "'s"},
                                                                                           {" 've", "'ve"},
                                                                                           {" 're", "'re"}}};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0) {
      if (pieces[i].starts_with(step.prefix))
        pieces[i].erase(0, step.prefix.size());
      else
        pieces[i].insert(0, 1, ' ');
    }
    if (!step.cleanup) continue;
    for (const auto& [old, replacement] : kCleanup) replace_all(pieces[i], old, replacement);
  }
  return pieces;
}

Pieces run_step(Pieces pieces, const DecodeEndSuffix& step) {
  if (step.suffix.empty()) return pieces;
  for (std::size_t i = 0; i < pieces.size(); ++i) replace_all(pieces[i], step.suffix, i + 1 < pieces.size() ? " " : "");
  return pieces;
}

Pieces run_step(Pieces pieces, const StripCharacter& step) {
  for (std::string& piece : pieces) {
    std::size_t first = 0, last = piece.size();
    for (std::size_t i = 0; i < step.left && first < last; ++i) {
      const auto [code, next] = char_at(piece, first);
      if (code != step.character) break;
      first = next;
    }
    for (std::size_t i = 0; i < step.right && first < last; ++i) {
      const auto [code, before] = char_before(piece, last);
      if (code != step.character) break;
      last = before;
    }
    piece = piece.substr(first, last - first);
  }
  return pieces;
}

std::size_t total_size(const Pieces& pieces) {
  std::size_t bytes = 0;
  for (const std::string& piece : pieces) bytes += piece.size();
  return bytes;
}

Pieces run_step(Pieces pieces, const ReplaceMatches& step, std::size_t limit) {
  std::size_t before = 0;  // number of bytes that the earlier pieces have become
  for (std::string& piece : pieces) {
    std::string result;
    for (const Match& match : step.pattern.split(piece)) {
      if (before + result.size() > limit) break;
      result += match.matches ? std::string_view(step.content) : std::string_view(piece).substr(match.first, match.last - match.first);
    }
    before += result.size();
    piece = std::move(result);
  }
  return pieces;
}

std::string_view kind_of(const DecoderStep& step) {
  static constexpr std::array<std::string_view, std::variant_size_v<DecoderStep>> kKinds{"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "WordPiece", "BPEDecoder", "Strip", "Replace"};
  return kKinds[step.index()];
}

}  // namespace

std::string decode_pieces(std::vector<std::string> pieces, const std::vector<DecoderStep>& steps) {
  const GrowthLimit growth("decoder", total_size(pieces));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    pieces = std::visit(
        [&](const auto& kind) {
          if constexpr (requires { run_step(std::move(pieces), kind, growth.limit()); })
            return run_step(std::move(pieces), kind, growth.limit());
          else
            return run_step(std::move(pieces), kind);
        },
        steps[i]);
    growth.check(total_size(pieces), i + 1, kind_of(steps[i]));
  }
  if (!steps.empty()) return joined(pieces);
  std::string text;
  for (std::size_t i = 0; i < pieces.size(); ++i) (text += i > 0 ? " " : "") += pieces[i];
  return text;
}

}  // namespace polyhead::models
