// Steps that turn the pieces of tokens into text again: the "decoder" of tokenizer.json.
#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "models/tokenizer/normalizer.h"

namespace polyhead::models {

struct DecodeByteLevel {};     // characters of byte_level.h become bytes; all pieces are joined
struct DecodeByteFallback {};  // "<0x0A>" becomes a byte; each byte that is not UTF-8 becomes U+FFFD
struct FusePieces {};          // all pieces are joined
struct DecodeMetaspace {
  char32_t replacement = 0x2581;
  bool drop_first = true;  // drops the spaces of the first piece
};
struct DecodeWordPiece {
  std::string prefix = "##";
  bool cleanup = true;  // removes spaces before punctuation and in English contractions
};
struct DecodeEndSuffix {  // the suffix of BPE becomes a space; at the end of the text it is removed
  std::string suffix = "</w>";
};
struct StripCharacter {
  char32_t character;
  std::size_t left, right;  // maximum number of characters to strip at each end of a piece
};

using DecoderStep = std::variant<DecodeByteLevel, DecodeByteFallback, FusePieces, DecodeMetaspace, DecodeWordPiece, DecodeEndSuffix, StripCharacter, ReplaceMatches>;

// Returns the text of pieces. Without steps, spaces are put between them. Error if a step makes the text longer than growth_limit.h allows.
std::string decode_pieces(std::vector<std::string> pieces, const std::vector<DecoderStep>& steps);

}  // namespace polyhead::models
